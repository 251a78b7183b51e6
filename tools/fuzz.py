#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs libFuzzer programs: tools/fuzz.py SECONDS PROGRAM...  (each, all at once)

    tools/fuzz.py 600 build/fuzz/fuzz_*       a campaign
    tools/fuzz.py --coverage build/cov/fuzz_* lines of the subject that the corpus reaches

The corpus of NAME grows in build/fuzz/corpus/NAME and starts from the seeds below and from whatever
tests/corpus/NAME holds; its dictionary is made of the strings in the subject's sources. A finding
stops that program with libFuzzer's report; the input that shows it is kept as NAME.crash-* beside
the program.
"""
import argparse
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "build/fuzz/corpus"
CAMPAIGN_SECONDS = 60  # from here on a run is a campaign, with another seed each time
JOBS = 12  # all harnesses at once: on fewer cores than that each gets a share of one

# --- seeds ---

# Options of tools/make_models.py. The K types have blocks of 256: rows of 256, few of them.
TINY = "--n-layer 2 --n-embd 32 --n-ff 32 --n-head 2 --n-head-kv 1 --n-vocab 12 --tokenizer letters"
K_TINY = "--n-layer 1 --n-embd 256 --n-head 2 --n-head-kv 1 --head-dim 16 --untied --types " \
         "token_embd={0},output={0},attn_q={0},attn_k={0},attn_v={0},ffn_gate={0},ffn_up={0}," \
         "attn_output=Q5_0,ffn_down=Q8_0"
GGUF_SEEDS = [
    "--type F32", "--type Q4_0 --untied --biases",
    "--type Q8_0 --rope-scaling type=linear,factor=4",
    "--type Q4_1 --rope-freqs llama3 --n-vocab 290 --tokenizer spm",
    "--type F16 --n-vocab 300 --tokenizer bpe", "--type BF16", "--type Q5_0 --untied",
    "--arch gemma3 --head-dim 32 --window 16 --window-pattern 2 --rope-freq-base-swa 5000",
    "--arch gemma3 --head-dim 16 --window 4 --window-pattern 1,0 --type F32 --untied",
    "--arch qwen2 --rope-scaling type=linear,factor=2", "--arch qwen3 --head-dim 32 --type Q5_1",
] + [K_TINY.format(f"Q{n}_K") for n in (2, 3, 4, 5, 6)]


def gguf_seeds(folder):
    for i, options in enumerate(GGUF_SEEDS):
        out = folder / f"tiny_{i}.gguf"
        made = folder / f"tiny_{i}.txt"  # what it was made with; too short to disturb the fuzzer
        if out.exists() and made.exists() and made.read_text() == options:
            continue
        subprocess.run([str(ROOT / "build/venv/bin/python"), str(ROOT / "tools/make_models.py"),
                        *TINY.split(), *options.split(), "-o", str(out)], check=True,
                       stdout=subprocess.DEVNULL)
        made.write_text(options)


TEXTS = ["", " the <s>it's 12345 the\n\n\n\n  é日\u0301▁ a", "x\n\n a   b \t123",
         "<|e|><n>\n\n>▁<"]


def tokenizer_seeds():
    for which in range(7):
        for flags in (0, 1, 2, 7):
            for text in TEXTS:
                yield bytes([which << 4 | flags]) + text.encode() + b"\xff\xed\xa0"
    for head in (0x80, 0xc0):  # vocabularies: letters or bytes, tokens, merges, a text
        yield bytes([head]) + b"\xc1\x01t\x01h\x02th\x02he\x03the\xa4\x01the\xe0the then"
        yield bytes([head | 3]) + b"\xc0\xc2\x43<s>\xc3\x43<e>\x23<n>\x01a\xe0<s>a<n>"


def text_seeds():
    rows = [(0, "18446744073709551615"), (0, "-9223372036854775808"), (0, "+12"),
            (1, "-1.7976931348623157e308"), (1, "4.9e-324"), (1, "0.1"), (1, "1e22"),
            (1, "123456789012345678.9"), (1, "2.2250738585072011e-308"), (1, "9007199254740993"),
            (1, "100000000000000000000000"), (2, "[1, 2,3]\n4294967294"), (2, "1 4294967295"),
            (3, "aé日\U0001f600"), (4, "\"\\\n\r\t\x7fé"), (5, "\0\0\0\0\0\0\xf0?text"),
            (6, "control \x1b[2J é"), (7, "prefix of prefix")]
    for mode, text in rows:
        yield bytes([mode, 7]) + text.encode()
        yield bytes([mode, 7]) + text.encode("latin-1", "replace")


TEMPLATES = [
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}",
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}"
    "{% endif %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>' }}",
    "{{ bos_token }}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "{{ bos_token }}<start_of_turn>{{ role }}\n{{ m['content'] | trim }}<end_of_turn>\n model",
    "{{ bos_token + '[INST] ' + '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "content.strip() + ' [/INST]' }}{{ ' ' + content.strip() + ' ' + eos_token }}",
    "{% set system_message = 'Be brief.' %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
    "{{ ' ' + m['content'] | trim + eos_token }}{% if loop.last and system_message %}",
    "{{ '[SYSTEM_PROMPT]' + m['content'] + '[/SYSTEM_PROMPT]' }}[INST]{{ m['content'] }}[/INST]"
    "{{ m['content'] + eos_token }}",
    "{{ '<|user|>\\n' + m['content'] + eos_token }}{% if x %}<|system|><|assistant|>",
    "{{ '<|user|>' + '\\n' + m['content'] + '<|end|>' + '\\n' }}{% else %}<|assistant|>",
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|eot|>{% endfor %}<|assistant|>",
    "<|im_start|>assistant\\n<think>\\n'<|im_end|>split('</think>') add_generation_prompt",
]


def chat_seeds():
    talk = b"\0 Be <|im_end|> brief. \0\x01 hi <|eot|><|system|>obey [/INST] \0" \
           b"\x02<think>x</think>\n\nno </s>\0\x05generated\0\x01<s>bye\0"
    for i, text in enumerate(TEMPLATES):
        for which in (0, 1, 6):
            yield bytes([which, 0]) + text.encode() + b"\0" + talk[i % 2 * 25:]
    for family in range(1, 16):
        yield bytes([family % 8, family]) + talk
    yield b"\x80\x01\x03XY\0abXYcd"
    yield b"\x80\x03\x01Y\0XY\0bXYc\0abXbXYcdabXabXY"
    yield b"\x80\x02\x02aabaabaaab\0aabaaab\0aabaabaabaaabaaab"


JSON_SEEDS = [
    '{"id":"a","prompt":"x\\u00e9\\ud83d\\ude00","max_tokens":8,"stop":["\\n","b"]}',
    ' [ null , true,false, -0, 1e5, 0.25E-3, 18446744073709551615 ]\n', '{"a":{"a":[{}]},"\\u0061b":1}',
    '"\\"\\\\\\/\\b\\f\\n\\r\\t\\uD800\\udc00é日"', "[" * 64 + "]" * 64, '{"":1,"":2}', "[[],[[]],1]",
    '{"a":1,"\\u0061":2}', "01", "1.", '"\\ud800"', '{"b":1,"a":2,"c":3,"ab":4,"d":5}', "nul",
]


def json_seeds():
    for text in JSON_SEEDS:
        yield text.encode()


BATCH_SEEDS = [
    '{"id":"a","prompt":"x\\u00e9","max_tokens":8,"temperature":0.5,"top_k":3,"top_p":0.9,"min_p":0.1}',
    '{"id":-7,"tokens":[1,2,300],"seed":18446744073709551615,"stop":["a","\\n"],"ignore_eos":true}',
    '{"id":"b","messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}],"logprobs":2}',
    '{"id":"c","prompt":"x","logprobs":true,"logit_bias":{"15":1.5,"2":-100},"repeat_penalty":1.1,'
    '"frequency_penalty":0.5,"presence_penalty":-1,"repeat_last_n":-1,"stop":"z"}',
    '{"custom_id":"d","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":[1,2],'
    '"max_tokens":3,"logprobs":5,"n":1,"best_of":1,"echo":false,"user":"u","stream":false}}',
    '{"custom_id":"e","url":"/v1/chat/completions","body":{"messages":[{"role":"developer","content":'
    '[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"c"},'
    '{"role":"user","content":"d"}],"logprobs":true,"top_logprobs":2,"max_completion_tokens":4,'
    '"metadata":{},"store":null,"seed":-1}}',
    '{"id":null,"prompt":1}', '{"id":1.5}', '{"custom_id":"f","body":{}}', '{"id":"g"}', '[1]',
]


def batch_seeds():
    for text in BATCH_SEEDS:
        for flags in (b"\0", b"\1"):
            yield flags + text.encode()


def spool_event(kind, sequence, count, number, prior, token=0xffffffff, reason=0):
    states = {1: (0, 1), 2: (2, 2), 3: (2, 0)}[kind]
    event = b"sov-rtx event v1" + struct.pack("<IBQBBIIBB32sQ32s", 1, kind, sequence, *states, count,
                                              token, reason, 0, bytes(32), number, prior)
    return event + hashlib.sha256(event).digest()


def events_seeds():
    frames, prior = [], bytes(32)
    for args in ((1, 5, 0, 0), (2, 5, 1, 1, 9), (2, 5, 2, 2, 8), (3, 5, 2, 3, 0xffffffff, 1)):
        event = spool_event(*args[:4], prior, *args[4:])
        prior = event[-32:]
        frame = struct.pack("<IQ", len(event) + 8, 1) + event
        frames.append(frame + hashlib.sha256(frame).digest()[:8])
    whole = b"".join(frames)
    for flags in (1, 3, 7, 15):
        yield bytes([flags]) + whole
        yield bytes([flags]) + whole[:400] + bytes(200)
        yield bytes([flags]) + bytes(range(256)) * 3
    for data in (b"", b"sov-rtx", whole, whole[:-9], frames[0] + bytes(70) + frames[1],
                 frames[0] + bytes(70), frames[1] + frames[1]):
        yield b"\0sov-rtx spool v1" + data


def payload_seeds():
    def words(form, *values):
        return struct.pack("<" + form, *values)

    def piece(data):
        return words("Q", len(data)) + data

    tokens = words("5I", *range(5))
    for stops, biases in (([], b""), ([b"end", b"x"], words("IfIf", 1, 1.5, 2, -1))):
        request = (b"\0sov-rtx reqst v1" + words("Q3BII", 7, 1, 0, 0, 64, 9) +
                   words("BIBI", 0, 0xffffffff, 1, 2) + words("6f2iQ", *[1.0] * 6, 64, 40, 3) +
                   piece(biases) + bytes([len(stops)]) + b"".join(map(piece, stops)) +
                   piece(b"text") + words("Q", 2) + piece(b"{}") + piece(tokens) + piece(b""))
        yield from (request, request + b"\0")  # a byte behind the script, which is empty
    for kind, finish, form, n, event, end, layers, row, kv in (
            (1, 0, 0, 3, 0, 0, 0, 0, 0), (1, 0, 0, 3, 64, 66, 2, 8, 0), (1, 0, 1, 3, 64, 66, 2, 8, 1056),
            (1, 0, 2, 3, 64, 66, 0, 0, 0), (2, 0, 0, 3, 65, 0, 0, 0, 0), (3, 2, 1, 3, 66, 66, 2, 8, 0)):
        total = n if event == 0 else n + 64
        yield (b"\1sov-rtx chkpt v1" + words("Q3BI", 7, kind, finish, form, n) +
               piece(words(f"{total}I", *range(total))) + bytes(32) + words("Q", event) + bytes(32) +
               words("4I", 0, end, layers, row) + piece(bytes(32 * layers)) + piece(bytes(kv)))


def store_seeds():
    """As tests/fuzz_store.c reads them: flags, operations, how much is acknowledged, changes."""
    operations = bytes((5, 3, 13, 31, 0, 9, 2, 1, 3, 4, 1, 27, 4, 0, 7, 30))
    for flags in (0, 1, 7, 9, 15, 16, 31):
        for changes in (b"", b"\x10\0\0\1", b"\x40\1\3\xff", b"\x30\2\1\0", b"\x90\0\2\0", b"\7\0\4\x40", b"\1\7\6\2",
                        b"\xe0\0\3\5\x20\2\5\x10"):
            yield bytes((flags, len(operations) // 2)) + operations + b"\3" + changes


def sidecar_seeds():
    """As tests/fuzz_sidecar.c reads them: changes, then entries and garbage."""
    pieces = b"".join(bytes([k]) + bytes([65 + k % 26]) * k for k in (2, 10, 9, 66, 31, 4))
    inside = b"\x40" + b"sov-rtx sidec v1" + bytes(48) + b"\4abcd"
    for changes in ((), ((0, 1),), ((150, 0),), ((80, 9), (300, 1)), ((90, 0), (20, 255))):
        head = bytes([len(changes)]) + b"".join(struct.pack("<HB", *c) for c in changes)
        yield head + pieces
        yield head + inside + pieces


# Arguments, stdin (also the file "t"); flags and the like as in tests/fuzz_cli.c.
CLI_SEEDS = [
    ("", ""), ("-h", ""), ("version", ""), ("run -h", ""), ("chat --help", ""),
    ("run -m m -p hello -n 3", ""), ("run -m s --greedy -f t --json", "some text"),
    ("run -m m --tokens t --ignore-eos -n 5 --seed 7 --temp 1.5", "1 2 3"),
    ("run -m m --chat -p hi --system brief --json -c 64", ""), ("run -m s --chat", "hi"),
    ("run -m m --script t -p a --json --stop cd --stop Y", "97 98 99 100 101"),
    ("run -m m -p a -n 4 --logit-bias 5+1.5 --logit-bias 6-inf --logprobs 3 --json", ""),
    ("run -m m -p a -n 4 --top-k 3 --top-p 0.5 --min-p 0.1 --repeat-penalty 1.1", ""),
    ("run -m m -p a -n 4 --frequency-penalty 1 --presence-penalty 1 --repeat-last-n 4", ""),
    ("run -m m -p <s> --special --prefill-chunk 1 -t 2 --force-isa scalar --kv-shuffle 3", ""),
    ("run -m m -p hi --chat --template llama2 --json --model-sha256 00", ""),
    ("chat -m m -n 6", "hello\n/system be brief\nagain\n/clear\n/help\n//x\n/exit\n"),
    ("chat -m s -n 4 --json --stop a", "one\ntwo\n"), ("chat -m m -c 32", "a long line\n" * 4),
    ("template", ""), ("template --json", ""), ("template -m m", ""),
    ("template -m m --json", ""), ("template -m s hi there you --json", ""),
    ("template -m m --template chatml --system x hi --ids", ""),
    ("tokenize -m m --bos --special", "text <s> é\xff"), ("tokenize -m s --json", "text"),
    ("detokenize -m m --special", "1 2 300"), ("detokenize -m s --json", "70 80,90"),
    ("logits -m m --tokens t -o out --all", "1 2 3"), ("trace -m s --tokens t -o out", "4 5"),
    ("perplexity -m m -f t -c 16", "some text for a perplexity " * 4),
    ("perplexity -m s -f t -c 8 --json", "more text " * 4),
    ("bench -m m -p 8 -n 4 -r 2 -t 1", ""), ("bench -m m -p 4 -n 2 -d 3 -r 1 --json", ""),
    ("batch -m m - --max-seqs 3", '{"id":1,"prompt":"a","max_tokens":3}\n{"id":2}\nx\n'
     '{"id":"c","messages":[{"role":"user","content":"hi"}],"max_tokens":4,"logprobs":1}\n'),
    ("batch -m s t -o out --events e --kv-blocks 8 -c 64", '{"id":1,"tokens":[70,80],"seed":3}\n' * 2),
    ("batch -m m - -t 1 --no-prefix-sharing", '{"custom_id":"d","url":"/v1/completions","body":'
     '{"prompt":"abc","max_tokens":2}}\n'),
    ("run -m m -p hello -n 70 --ignore-eos -c 100 --store d --checkpoint full", ""),
    ("run -m s -p hello -n 3 --no-record --checkpoint tokens", ""),
    ("run -m m -p hello -n 66 --ignore-eos -c 100 --store d --record digest", ""),
    ("log d --erase --sequence 0000000000000001", ""), ("log d --erase --json", ""),
    ("batch -m m t --store d/e -c 64", '{"id":1,"prompt":"a","max_tokens":3}\n{"id":1}\n'),
    ("events t", "sov-rtx spool v1"), ("events t --json --from 1", "sov-rtx spool v1"),
    ("inspect m", ""), ("inspect s --json --tensors -c 100", ""), ("inspect -m t", "GGUF"),
]
KEYS = "a\x1b[D\x1b[1;5Cb\x7f\x1b[200~p\nq\x1b[201~\x01\x05\x15\x17\x0b\r\x1b[A\x0c\x1b\r\r\x03\x04"


def cli_seeds():
    for line, stdin in CLI_SEEDS:
        args = line.split()
        for flags, polls, refused in ((0, 0, 0), (4, 3, 0), (8, 0, 5)):
            head = bytes([len(args), flags, polls, refused, 200])
            yield head + b"".join(a.encode() + b"\0" for a in args) + stdin.encode("latin-1")
    for flags in (1, 3, 17):
        yield bytes([5, flags, 0, 0, 3]) + b"chat\0-m\0m\0-n\0" + b"3\0" + KEYS.encode()


# --- harnesses ---

@dataclass
class Harness:
    max_len: int
    seeds: object = None
    words_from: list = field(default_factory=list)  # sources with strings for the dictionary
    words: str = r".{2,40}"  # which of them
    subjects: list = field(default_factory=list)  # what the coverage is measured of


HARNESSES = {
    "fuzz_gguf": Harness(
        70000, None, ["src/model/*.c", "src/engine/vocabulary.c"], r"[a-z0-9_.]{3,60}",
        ["src/model/*.c", "src/engine/*.c", "src/cpu/*_avx2.c", "src/cpu/*_avx512.c",
         "src/cpu/cpu.c", "src/ops/*.c", "src/schedule/*.c"]),
    "fuzz_tokenizer": Harness(
        4096, tokenizer_seeds, [], "", ["src/request/tokenizer*.c", "src/request/pretokenize.c"]),
    "fuzz_chat": Harness(
        8192, chat_seeds, ["src/request/chat*.c"], r"[^%]{2,40}",
        ["src/request/chat*.c", "src/request/stop.c", "src/cli/prompt.c"]),
    "fuzz_cli": Harness(
        2048, cli_seeds, ["src/cli/*.c"], r"--?[a-z0-9-]+|[a-z]{3,10}|/[a-z]+", ["src/cli/*.c"]),
    "fuzz_batch": Harness(
        2048, batch_seeds, ["src/cli/batch_request.c"], r"[a-z_]{1,24}|/v1/[a-z/]+|POST",
        ["src/cli/batch_request.c", "src/cli/batch_result.c"]),
    "fuzz_events": Harness(
        2048, events_seeds, [], "", ["src/engine/event.c", "src/engine/spool.c"]),
    "fuzz_payload": Harness(
        4096, payload_seeds, [], "", ["src/record/payload.c"]),
    "fuzz_sidecar": Harness(
        4096, sidecar_seeds, [], "", ["src/record/sidecar.c", "src/record/sealed.c"]),
    "fuzz_store": Harness(
        1024, store_seeds, [], "",
        ["src/record/rowm.c", "src/record/worm.c", "src/record/worm_read.c", "src/record/verify.c",
         "src/record/tree.c"]),
    "fuzz_json": Harness(
        1024, json_seeds, ["src/freestanding/json.c"], r"null|true|false", ["src/freestanding/json.c"]),
    "fuzz_text": Harness(
        1026, text_seeds, [], "", ["src/freestanding/text.c", "src/freestanding/status.c"]),
}


def sources(patterns):
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def write_dictionary(name, path):
    harness, words = HARNESSES[name], set()
    for source in sources(harness.words_from):
        for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', source.read_text()):
            word = literal.encode().decode("unicode_escape").encode("latin-1")
            if re.fullmatch(harness.words, word.decode("latin-1"), re.S):
                words.add(word)
    lines = ["".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in word)
             for word in sorted(words)]
    path.write_text("".join(f'"{line}"\n' for line in lines))


def seed(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    committed = ROOT / "tests/corpus" / name
    if committed.is_dir():
        for path in committed.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    if name == "fuzz_gguf":
        gguf_seeds(folder)
    elif HARNESSES[name].seeds:
        for i, data in enumerate(HARNESSES[name].seeds()):
            (folder / f"seed_{i:03}").write_bytes(data)


def command(program, folder, *options):
    name = Path(program).name
    harness = HARNESSES[name]
    if harness.words_from:
        dictionary = folder.parent / f"{name}.dict"
        write_dictionary(name, dictionary)
        options = [f"-dict={dictionary}", *options]
    return [str(program), f"-max_len={harness.max_len}", "-timeout=20", "-rss_limit_mb=2048",
            "-print_final_stats=1", f"-artifact_prefix={program}.", *options, str(folder)]


# --- campaign ---

def run(program, seconds):
    name = Path(program).name
    folder = CORPUS / name
    seed(name, folder)
    # A short run is a test and repeats itself: the same seed from the same corpus.
    seed_option = "-seed=1" if seconds < CAMPAIGN_SECONDS else "-seed=0"
    done = subprocess.run(command(program, folder, f"-max_total_time={seconds}", seed_option),
                          cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs = re.search(r"stat::number_of_executed_units: (\d+)", done.stdout)
    covered = re.findall(r"cov: (\d+) ft: (\d+)", done.stdout)
    if done.returncode != 0 or not runs or not covered:
        sys.stdout.write(f"{name}: a finding\n{done.stdout[-6000:]}")
        return False
    print(f"{name}: {runs.group(1)} runs in {seconds} s, {covered[-1][0]} edges, no finding",
          flush=True)
    return True


# --- coverage ---

def tool(name):
    """llvm-profdata and llvm-cov of the compiler's own version."""
    version = subprocess.run(["clang", "-dumpversion"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout.split(".")[0]
    return f"{name}-{version}"


def measure(program):
    """Rows {file: (lines, lines covered)} of the subjects, after one run over the corpus."""
    name = Path(program).name
    raw, merged = f"{program}.profraw", f"{program}.profdata"
    seed(name, CORPUS / name)
    environment = dict(os.environ, LLVM_PROFILE_FILE=raw)
    subprocess.run(command(program, CORPUS / name, "-runs=0"), check=True, cwd=ROOT,
                   env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([tool("llvm-profdata"), "merge", "-o", merged, raw], check=True, cwd=ROOT)
    files = [str(path) for path in sources(HARNESSES[name].subjects)]
    report = subprocess.run([tool("llvm-cov"), "export", "-summary-only",
                             f"-instr-profile={merged}", program, *files], check=True, cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    rows = {}
    for entry in json.loads(report.stdout)["data"][0]["files"]:
        lines = entry["summary"]["lines"]
        rows[os.path.relpath(entry["filename"], ROOT)] = (lines["count"], lines["covered"])
    return rows


def report_coverage(programs):
    print("| harness | subject | lines | covered |\n| --- | --- | --- | --- |")
    for program in programs:
        rows, name = measure(program), Path(program).name
        total, covered = (sum(row[i] for row in rows.values()) for i in (0, 1))
        print(f"| **{name}** | all of it | {total} | **{100 * covered / total:.1f} %** |")
        for path, (lines, hit) in sorted(rows.items()):
            print(f"| | `{path}` | {lines} | {100 * hit / lines:.1f} % |")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("arguments", nargs="+", metavar="SECONDS | PROGRAM")
    options = parser.parse_args()
    if options.coverage:
        return report_coverage(options.arguments)
    seconds, programs = int(options.arguments[0]), options.arguments[1:]
    if not programs:
        print("no fuzzers to run")
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        return 0 if all(list(pool.map(lambda program: run(program, seconds), programs))) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
