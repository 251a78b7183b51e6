# SPDX-License-Identifier: Apache-2.0
"""sov batch: the bytes of an answer do not depend on what else runs, bad lines hurt nobody else,
both shapes, and what a spool holds. Over a small model with random weights; the long form also over
SmolLM2."""
import json
import os
import random
import re
import signal
import struct
import subprocess
import time

import pytest

import chat_models
import sov

SEED = 20263
CHATML = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>'"
          " + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
          "{% endif %}")
CONTEXT = 256  # of the small model: 16 blocks
WORDS = "the old harbour was small and every captain knew each ship by name before coal came".split()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("batch") / "small.gguf"
    return chat_models.write_model(path, chat_models.bpe_keys(CHATML), n_layer=2, n_embd=64, n_ff=64,
                                   n_head=4, n_head_kv=2, context=CONTEXT)


def requests(n, words, tokens):
    """n requests of mixed length, greedy and sampled; every third begins with the same text."""
    rng = random.Random(SEED)
    shared = " ".join(rng.choice(WORDS) for _ in range(words // 2))
    for i in range(n):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, words // 2)))
        line = {"id": f"r{i:03}", "prompt": shared + " " + text if i % 3 == 0 else text,
                "max_tokens": rng.randrange(1, tokens)}
        if i % 2:
            line["temperature"] = 0
        else:
            line.update(temperature=rng.choice([0.7, 1.0, 1.8]), top_k=rng.choice([0, 5, 40]),
                        top_p=rng.choice([0.9, 1.0]), seed=rng.getrandbits(64))
        if i % 5 == 0:
            line["ignore_eos"] = True
        if i % 7 == 0:
            line["stop"] = rng.choice([["e"], "th", ["xyz", " s"]])
        if i % 11 == 0:
            line["logprobs"] = rng.randrange(0, 4)
        if i % 13 == 0:
            line.update(frequency_penalty=0.5, repeat_penalty=1.1, repeat_last_n=32)
        if i % 17 == 0:
            line["messages"] = [{"role": "user", "content": line.pop("prompt")}]
        yield line


def batch(model, lines, *options, program=sov.SOV, code=0, **more):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = sov.call("batch", "-m", model, "-", *options, program=program,
                    stdin=text.encode("utf-8", "surrogateescape"), **more)
    assert done.returncode == code, (options, done.stderr.decode())
    return done


def answers(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def figures(done):
    found = re.search(rb"(\d+) steps, (\d+) swaps \((\d+) to memory\), (\d+) prompt tokens",
                      done.stderr)
    return dict(zip(("steps", "swaps", "spills", "shared"), map(int, found.groups())))


# --- the same bytes ---

def compare(model, lines, variants):
    """Every variant gives the lines of the first, byte for byte, in some order."""
    expected = None
    for name, (order, options, wanted) in variants.items():
        ordered = list(lines)
        if order == "backwards":
            ordered.reverse()
        elif order:
            random.Random(order).shuffle(ordered)
        done = batch(model, ordered, *options)
        found = sorted(done.stdout.splitlines())
        expected = expected or found
        assert len(found) == len(lines), name
        for one, other in zip(found, expected):
            assert one == other, (name, one, other)
        numbers = figures(done)
        for key, value in wanted.items():
            assert (numbers[key] > 0) == value, (name, key, numbers)
    return [json.loads(line) for line in expected]


def variants(context):
    """Orders, sequences at once, KV budgets, sharing, threads."""
    tight = context // 16  # blocks of one context: the least there can be
    share, swap = {"shared": True}, {"swaps": True}
    alone = {"shared": False}
    yield "default", (0, ["-t", "2"], share)
    for n in (1, 7, 64, 256):
        for order in (0, "backwards", 5):
            threads = "2" if (n, order) in ((7, 5), (64, 0), (256, "backwards")) else "1"
            yield f"{n} at once, order {order}", (order, ["--max-seqs", n, "-t", threads], {})
    for n in (7, 64, 256):
        for blocks in (tight, tight + 5, 4 * tight):
            options = ["--max-seqs", n, "--kv-blocks", blocks, "-t", "1"]
            yield f"{n} at once in {blocks} blocks", (n, options, swap if blocks < 2 * tight else {})
    few = ["--max-seqs", 64, "--kv-blocks", 2 * tight, "-t", "2"]
    yield "swapped, computed again", (3, few, {**swap, "spills": False})
    yield "swapped, spilled", (4, [*few, "--spill-blocks", 3 * tight], {**swap, "spills": True})
    yield "swapped, nothing shared", (5, [*few, "--no-prefix-sharing"], {**swap, **alone})
    yield "nothing shared", ("backwards", ["--no-prefix-sharing", "-t", "1"], alone)
    yield "small chunks", (6, ["--prefill-chunk", 5, "--max-seqs", 7, "-t", "2"], {})
    yield "small steps", (7, ["--token-budget", 70, "--max-seqs", 64, "-t", "1"], {})
    yield "shuffled blocks", (8, ["--kv-shuffle", 3, "--max-seqs", 64, "-t", "1"], {})
    yield "scalar kernels", (9, ["--force-isa", "scalar", "--max-seqs", 7, "-t", "2"], {})


def test_same_bytes(small):
    lines = list(requests(200, 24, 90))
    found = compare(small, lines, dict(variants(CONTEXT)))
    reasons = [answer["finish_reason"] for answer in found]
    assert {"stop", "length"} == set(reasons) and min(map(reasons.count, set(reasons))) > 10
    for line, answer in zip(lines, found):
        assert answer["id"] == line["id"] and len(answer["tokens"]) <= line["max_tokens"]
        assert ("logprobs" in answer) == ("logprobs" in line)
        assert answer["usage"]["completion_tokens"] == len(answer["tokens"])
        assert answer["seed"] == line.get("seed", answer["seed"])


def test_a_full_house(small):
    """As many sequences as there can be, each among 255 others."""
    lines = list(requests(300, 24, 8))
    alone = batch(small, lines, "--max-seqs", 1, "-t", 1)
    together = batch(small, lines, "--max-seqs", 256, "-t", 2)
    assert sorted(alone.stdout.splitlines()) == sorted(together.stdout.splitlines())


def test_the_same_as_alone(small):
    """What sov run says to the same prompt."""
    lines = [line for line in requests(40, 24, 40) if "prompt" in line and "stop" not in line]
    found = {answer["id"]: answer for answer in answers(batch(small, lines))}
    for line in lines[::3]:
        answer = found[line["id"]]
        names = {"max_tokens": "-n", "temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p",
                 "frequency_penalty": "--frequency-penalty", "repeat_penalty": "--repeat-penalty",
                 "repeat_last_n": "--repeat-last-n"}
        options = [x for name, option in names.items() if name in line for x in (option, line[name])]
        options += ["--ignore-eos"] if line.get("ignore_eos") else []
        alone = sov.run_json(small, "-p", line["prompt"], "--seed", answer["seed"], *options)
        for key in ("tokens", "text", "finish_reason"):
            assert alone[key] == answer[key], line


def test_sanitizers(small):
    lines = list(requests(30, 24, 12))
    few = ["--max-seqs", 16, "--kv-blocks", CONTEXT // 16 + 2]
    plain = batch(small, lines, *few)
    checked = batch(small, lines, *few, program=sov.BUILD / "sov-asan")
    assert sorted(plain.stdout.splitlines()) == sorted(checked.stdout.splitlines())


@pytest.mark.skipif(not sov.FULL, reason="long form")
@pytest.mark.parametrize("swaps", [False, True])
def test_same_bytes_smollm2(swaps):
    """Short answers in most mixes; longer ones, which outgrow what was promised, where blocks are
    few."""
    context = 160 if swaps else 512
    some = {name: (order, ["-c", context, *options], wanted)
            for name, (order, options, wanted) in dict(variants(context)).items()
            if name == "default" or name.startswith("swapped") == swaps and
            "blocks" not in name and "scalar" not in name}
    compare(sov.model("smollm2"), list(requests(60, 20, 90) if swaps else requests(200, 20, 12)), some)


def test_smollm2():
    """A short form over the real model: a text that makes sense, in company."""
    model = sov.model("smollm2")
    lines = [{"id": i, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
             for i in range(3)]
    lines.append({"id": "chat", "messages": [{"role": "user", "content": "Say hello."}],
                  "max_tokens": 8, "temperature": 0})
    found = {answer["id"]: answer for answer in answers(batch(model, lines, "-c", 128))}
    assert all(found[i]["text"].startswith(" Paris") for i in range(3))
    assert len({found[i]["digest"] for i in range(3)}) == 3  # the id is part of the chain
    alone = sov.run_json(model, "--chat", "-p", "Say hello.", "-n", "8", "--greedy", "-c", "128")
    assert found["chat"]["tokens"] == alone["tokens"] and found["chat"]["text"] == alone["text"]


# --- lines that are wrong ---

OPENAI = {"custom_id": "c", "method": "POST", "url": "/v1/completions"}
BAD = [  # line, code, part of the message
    ("nonsense", "FORMAT", "a value was expected"),
    ('{"id":1,"prompt":"x"', "FORMAT", "a comma or }"),
    ('{"id":1,"prompt":"x","prompt":"y"}', "FORMAT", "stands twice"),
    ('{"id":1,"prompt":"\udcff"}', "FORMAT", "UTF-8"),
    ("[" * 100, "LIMIT", "nested too deeply"),
    ("[1]", "ARGUMENT", "an object was expected"),
    ("7", "ARGUMENT", "an object was expected"),
    ({"prompt": "x"}, "ARGUMENT", "id is missing"),
    ({"id": None, "prompt": "x"}, "ARGUMENT", "id is missing"),
    ({"id": 1.5, "prompt": "x"}, "ARGUMENT", "a string or a whole number"),
    ({"id": "i" * 257, "prompt": "x"}, "LIMIT", "at most 256"),
    ({"id": "a"}, "ARGUMENT", "one of prompt, tokens and messages"),
    ({"id": "a", "prompt": "x", "tokens": [1]}, "ARGUMENT", "one of prompt"),
    ({"id": "a", "prompt": 5}, "ARGUMENT", "prompt: a string"),
    ({"id": "a", "prompt": ""}, "ARGUMENT", "empty"),
    ({"id": "a", "tokens": []}, "ARGUMENT", "empty"),
    ({"id": "a", "tokens": "1 2"}, "ARGUMENT", "tokens: an array"),
    ({"id": "a", "tokens": [1, -1]}, "ARGUMENT", "a token id"),
    ({"id": "a", "tokens": [1, "2"]}, "ARGUMENT", "a token id"),
    ({"id": "a", "tokens": [999999]}, "ARGUMENT", "vocabulary"),
    ({"id": "a", "tokens": [65] * (CONTEXT + 1)}, "LIMIT", "context"),
    ({"id": "a", "prompt": "x", "temperatur": 1}, "ARGUMENT", 'no field "temperatur"'),
    ({"id": "a", "prompt": "x", "max_tokens": 0}, "ARGUMENT", "max_tokens: a whole number from 1"),
    ({"id": "a", "prompt": "x", "max_tokens": 2.5}, "ARGUMENT", "found 2.5"),
    ({"id": "a", "prompt": "x", "max_tokens": "9"}, "ARGUMENT", "found a string"),
    ({"id": "a", "prompt": "x", "temperature": -1}, "ARGUMENT", "temperature"),
    ({"id": "a", "prompt": "x", "temperature": "hot"}, "ARGUMENT", "temperature: a number"),
    ('{"id":"a","prompt":"x","temperature":1e999}', "ARGUMENT", "temperature: a number"),
    ({"id": "a", "prompt": "x", "top_p": 1.5}, "ARGUMENT", "top_p"),
    ({"id": "a", "prompt": "x", "min_p": 2}, "ARGUMENT", "min_p"),
    ({"id": "a", "prompt": "x", "top_k": 1e10}, "ARGUMENT", "top_k"),
    ({"id": "a", "prompt": "x", "seed": 2**64}, "ARGUMENT", "seed: a whole number of 64 bits"),
    ({"id": "a", "prompt": "x", "seed": 1.5}, "ARGUMENT", "seed"),
    ({"id": "a", "prompt": "x", "stop": 1}, "ARGUMENT", "stop"),
    ({"id": "a", "prompt": "x", "stop": [""]}, "LIMIT", "1 to 256 bytes"),
    ({"id": "a", "prompt": "x", "stop": ["s" * 257]}, "LIMIT", "1 to 256 bytes"),
    ({"id": "a", "prompt": "x", "stop": ["s"] * 17}, "LIMIT", "at most 16"),
    ({"id": "a", "prompt": "x", "ignore_eos": 1}, "ARGUMENT", "true or false"),
    ({"id": "a", "prompt": "x", "logprobs": 21}, "ARGUMENT", "from 0 to 20"),
    ({"id": "a", "prompt": "x", "logit_bias": {"x": 1}}, "ARGUMENT", "a token id in quotes"),
    ({"id": "a", "prompt": "x", "logit_bias": {"999999": 1}}, "ARGUMENT", "vocabulary"),
    ({"id": "a", "prompt": "x", "logit_bias": [1]}, "ARGUMENT", "an object"),
    ({"id": "a", "messages": []}, "ARGUMENT", "there is none"),
    ({"id": "a", "messages": {"role": "user"}}, "ARGUMENT", "an array"),
    ({"id": "a", "messages": ["hi"]}, "ARGUMENT", "an object"),
    ({"id": "a", "messages": [{"content": "x"}]}, "ARGUMENT", "without a role"),
    ({"id": "a", "messages": [{"role": "tool", "content": "x"}]}, "ARGUMENT", "role"),
    ({"id": "a", "messages": [{"role": "user"}]}, "ARGUMENT", "without content"),
    ({"id": "a", "messages": [{"role": "user", "content": 1}]}, "ARGUMENT", "content: a string"),
    ({"id": "a", "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "ARGUMENT", "text"),
    ({**OPENAI, "custom_id": None, "body": {"prompt": "x"}}, "ARGUMENT", "custom_id is missing"),
    ({"body": {"prompt": "x"}}, "ARGUMENT", "custom_id is missing"),
    ({**OPENAI, "method": "GET", "body": {"prompt": "x"}}, "ARGUMENT", "POST"),
    ({**OPENAI, "url": "/v1/embeddings", "body": {"input": "x"}}, "ARGUMENT", "/v1/chat/completions"),
    ({"custom_id": "c", "body": {"prompt": "x"}}, "ARGUMENT", "url is missing"),
    (OPENAI, "ARGUMENT", "body is missing"),
    ({**OPENAI, "methood": "POST", "body": {"prompt": "x"}}, "ARGUMENT", 'no field "methood"'),
    ({**OPENAI, "body": "x"}, "ARGUMENT", "body: an object"),
    ({**OPENAI, "body": {}}, "ARGUMENT", "prompt is missing"),
    ({**OPENAI, "body": {"prompt": "x", "n": 2}}, "ARGUMENT", "n: a whole number from 1 to 1"),
    ({**OPENAI, "body": {"prompt": "x", "stream": True}}, "ARGUMENT", "stream: false"),
    ({**OPENAI, "body": {"prompt": "x", "tools": []}}, "ARGUMENT", 'no field "tools"'),
    ({**OPENAI, "body": {"messages": []}}, "ARGUMENT", 'no field "messages"'),
]


def test_bad_lines(small):
    good = [{"id": f"good {i}", "prompt": "the old harbour", "max_tokens": 3} for i in range(3)]
    # Each alone, so that ids do not meet; one process for them all would refuse repeated ids.
    lines, expected = [good[0], ""], []
    for i, (line, code, part) in enumerate(BAD):
        if isinstance(line, dict):
            for key in ("id", "custom_id"):
                if isinstance(line.get(key), str) and len(line[key]) == 1:
                    line = {**line, key: f"{line[key]}{i}"}
        elif '"id":"a"' in line:
            line = line.replace('"id":"a"', f'"id":"a{i}"')
        lines.append(line)
        own = line if isinstance(line, dict) else {"id": f"a{i}"} if f'"a{i}"' in line else {}
        known = own.get("custom_id", own.get("id"))
        expected.append((len(lines), code, part, known, "custom_id" in own or "body" in own))
    lines += ["   \t", good[1], good[2], good[0]]
    done = batch(small, lines, "-c", CONTEXT, code=1)
    found = {}
    texts = []
    for answer in answers(done):
        error = answer.get("error")
        if error:
            found[answer.get("line", error.get("line"))] = answer
        else:
            texts.append(answer["text"])
    assert len(texts) == 3
    for number, code, part, known, is_openai in expected:
        answer = found.pop(number)
        assert answer["error"]["code"] == f"SOV_ERR_{code}" and part in answer["error"]["message"], \
            (number, lines[number - 1], answer)
        name = "custom_id" if is_openai else "id"
        if isinstance(known, str) and len(known) < 200:
            assert answer[name] == known
        else:
            assert answer[name] is None
        assert not is_openai or answer["response"] is None
    twice = found.pop(len(lines))
    assert "same id" in twice["error"]["message"] and not found
    assert f"{len(BAD) + 4} requests, {len(BAD) + 1} errors".encode() in done.stderr


def test_one_fails(tmp_path):
    """A token whose weights overflow ends the sequences that have it, with the reason; the others,
    in the same batches, give what they give alone."""
    path = chat_models.write_model(tmp_path / "m.gguf", chat_models.bpe_keys(None), n_layer=1,
                                   n_embd=64, n_head=2, n_head_kv=1, type="F32", types={}, tied=False)
    data = bytearray(path.read_bytes())
    tensors = json.loads(sov.succeed("inspect", path, "--tensors", "--json").stdout)["tensors"]
    begin = len(data) - sum((tensor["bytes"] + 31) // 32 * 32 for tensor in tensors)
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8 + 4
    row = begin + struct.unpack_from("<Q", data, at)[0] + 7 * 64 * 4
    data[row:row + 64 * 4] = struct.pack("<64f", *[3e38] * 64)
    path.write_bytes(data)
    base = {"max_tokens": 5, "ignore_eos": True, "temperature": 0, "logit_bias": {"7": -1e6}}
    lines = [{"id": i, "tokens": [60 + i, 61, 7 if i == 2 else 62], **base} for i in range(4)]
    found = {a["id"]: a for a in answers(batch(path, lines, code=1))}
    assert found[2]["error"]["code"] == "SOV_ERR_NON_FINITE" and found[2]["line"] == 3
    for i in (0, 1, 3):
        assert answers(batch(path, [lines[i]])) == [found[i]]


def test_line_too_long(small):
    long = b'{"id":"long","prompt":"' + b"x" * (17 << 20) + b'"}\n'
    good = b'{"id":"%d","prompt":"x","max_tokens":2}\n'
    done = sov.call("batch", "-m", small, "-", stdin=good % 1 + long + good % 2 + (good % 3)[:-1])
    assert done.returncode == 1
    found = answers(done)
    assert sorted(a["id"] for a in found if "error" not in a) == ["1", "2", "3"]
    [bad] = [a for a in found if "error" in a]
    assert bad["line"] == 2 and bad["error"]["code"] == "SOV_ERR_LIMIT" and bad["id"] is None


def test_usage(small, tmp_path):
    assert b"batch" in sov.succeed("batch", "-h").stdout
    for options, code in [([], 2), (["-m", small], 2), (["-m", small, "-", "--max-seqs", "0"], 2),
                          (["-m", small, "-", "--max-seqs", "257"], 2), (["-"], 2),
                          (["-m", small, "no/such/file"], 1), (["-m", "no/such/model", "-"], 1),
                          (["-m", small, "-", "-o", "no/such/folder/x"], 1),
                          (["-m", small, "-", "--events", "no/such/folder/x"], 1),
                          (["-m", small, "-", "--kv-blocks", "3"], 1)]:
        done = sov.call("batch", *options)
        assert done.returncode == code and done.stderr.startswith(b"sov: "), options
        assert done.stdout == b""
    assert b"itself" in sov.call("batch", "-m", small, "x", "-o", "x").stderr
    results = tmp_path / "results"
    results.write_text("earlier")
    assert sov.call("batch", "-m", small, "no/such/file", "-o", results).returncode == 1
    assert results.read_text() == "earlier"  # emptied only when there is something to do
    requests_file = tmp_path / "requests"
    requests_file.write_text('{"id":1,"prompt":"x","max_tokens":1}')
    sov.succeed("batch", "-m", small, requests_file, "-o", results)
    assert json.loads(results.read_text())["id"] == 1
    assert sov.succeed("batch", "-m", small, "-", stdin=b"").stdout == b""


# --- shapes ---

def test_fields(small):
    """Every way to say a prompt; ids; stops; biases; logprobs."""
    text = "the old harbour"
    ids = [int(i) for i in sov.succeed("tokenize", "-m", small, stdin=text.encode()).stdout.split()]
    base = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    lines = [{"id": 7, "prompt": text, **base}, {"id": "7", "tokens": ids, **base},
             {"id": "list", "prompt": ids, **base}, {"id": "e\u00e9\"\n", "prompt": text, **base},
             {"id": "null", "prompt": text, "seed": None, "stop": None, **base},
             {"id": "bias", "prompt": text, "logit_bias": {"66": 100}, **base},
             {"id": "lp", "prompt": text, "logprobs": 2, **base},
             {"id": "lp0", "prompt": text, "logprobs": True, **base},
             {"id": "no", "prompt": text, "logprobs": False, **base}]
    found = {answer["id"]: answer for answer in answers(batch(small, lines))}
    assert set(found) == {line["id"] for line in lines} and 7 in found and "7" in found
    same = [found[key]["tokens"] for key in (7, "7", "list", "e\u00e9\"\n", "null", "lp", "no")]
    assert all(tokens == same[0] for tokens in same) and len(same[0]) == 6
    assert found["bias"]["tokens"] == [66] * 6
    assert len(found["lp"]["logprobs"]) == 6 and "logprobs" not in found["no"]
    for entry in found["lp"]["logprobs"]:
        assert len(entry["top_logprobs"]) == 2 and entry["top_logprobs"][0]["id"] == entry["id"]
    assert all(entry["top_logprobs"] == [] for entry in found["lp0"]["logprobs"])
    part = found[7]["text"][2:4]
    line = {"id": "stop", "prompt": text, "stop": [part], **base}
    [stopped] = answers(batch(small, [line]))
    assert stopped["text"] == found[7]["text"][:found[7]["text"].index(part)]
    assert stopped["finish_reason"] == "stop" and len(stopped["tokens"]) < 6


def test_openai(small):
    parts = [{"type": "text", "text": "the old"}, {"type": "text", "text": " harbour"}]
    greedy = {"model": "any", "temperature": 0, "user": "u", "n": 1, "stream": False}
    chat = {"method": "POST", "url": "/v1/chat/completions"}
    lines = [
        {**OPENAI, "custom_id": "one", "body": {"prompt": "the old harbour", **greedy}},
        {**OPENAI, "custom_id": "two", "body": {"prompt": "the old harbour", "max_tokens": 3,
                                                "logprobs": 2, "ignore_eos": True, **greedy}},
        {**chat, "custom_id": "three", "body": {
            "messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}],
            "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 1, "ignore_eos": True,
            **greedy}},
        {**chat, "custom_id": "four", "body": {"messages": [{"role": "user", "content": "x"}],
                                               "tools": None, "seed": -1, "max_tokens": 2}},
        {"id": "ours", "messages": [{"role": "system", "content": "s"},
                                    {"role": "user", "content": "the old harbour"}],
         "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 1},
    ]
    found = {a.get("custom_id", a.get("id")): a for a in answers(batch(small, lines))}
    ours = found.pop("ours")
    assert set(found) == {"one", "two", "three", "four"}
    for answer in found.values():
        response = answer["response"]
        assert answer["error"] is None and response["status_code"] == 200
        body = response["body"]
        assert body["usage"]["total_tokens"] == sum(
            body["usage"][key] for key in ("prompt_tokens", "completion_tokens"))
        assert len(body["sov"]["digest"]) == 64
    one, two, three = (found[key]["response"]["body"] for key in ("one", "two", "three"))
    assert one["object"] == "text_completion" and one["usage"]["completion_tokens"] <= 16
    assert one["choices"][0]["logprobs"] is None
    logprobs = two["choices"][0]["logprobs"]
    assert [len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs",
                                           "text_offset")] == [3] * 4
    assert logprobs["text_offset"][0] == 0
    assert three["object"] == "chat.completion"
    message = three["choices"][0]["message"]
    assert message == {"role": "assistant", "content": ours["text"]}
    assert three["choices"][0]["logprobs"]["content"] == ours["logprobs"]
    assert found["four"]["response"]["body"]["sov"]["seed"] == 2**64 - 1


def test_no_template(small, tmp_path):
    path = chat_models.write_model(tmp_path / "plain.gguf", chat_models.bpe_keys(None), n_layer=1,
                                   n_embd=64, n_head=2, n_head_kv=1)
    line = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    [answer] = answers(batch(path, [line], code=1))
    assert answer["error"]["code"] == "SOV_ERR_UNSUPPORTED" and "template" in answer["error"]["message"]
    [answer] = answers(batch(path, [line], "--template", "chatml"))
    assert len(answer["tokens"]) <= 1


# --- streams and signals ---

def start(model, *options, **more):
    return subprocess.Popen([sov.SOV, "batch", "-m", model, "-", *map(str, options)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            **more)


def test_one_line_at_a_time(small):
    """Whoever waits for an answer before the next line gets it, though there is room for more."""
    with start(small, "--max-seqs", 8) as process:
        for i in range(5):
            process.stdin.write(b'{"id":%d,"prompt":"x","max_tokens":3}\n' % i)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == i
        # While one runs, a short one that comes later overtakes it.
        process.stdin.write(b'{"id":"slow","prompt":"x","max_tokens":240,"ignore_eos":true}\n')
        process.stdin.flush()
        process.stdin.write(b'{"id":"quick","prompt":"x","max_tokens":1}\n')
        process.stdin.close()
        assert [json.loads(line)["id"] for line in process.stdout] == ["quick", "slow"]
        assert process.wait() == 0


def test_interrupt(small):
    with start(small, "--max-seqs", 4) as process:
        for i in range(4):
            process.stdin.write(b'{"id":%d,"prompt":"x","max_tokens":1}\n' % i)
        process.stdin.flush()
        assert len([process.stdout.readline() for _ in range(4)]) == 4
        process.send_signal(signal.SIGINT)  # while it waits for a line
        assert process.wait(timeout=20) == 130
    lines = list(requests(400, 24, 200))
    with start(small, "--max-seqs", 4, "-t", "1") as process:
        text = "".join(json.dumps({**line, "ignore_eos": True}) + "\n" for line in lines).encode()
        process.stdin.write(text[:30000])
        process.stdin.flush()
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err.decode()
    found = [json.loads(line) for line in [first, *out.splitlines()]]
    reasons = [answer["finish_reason"] for answer in found]
    assert reasons.count("cancelled") <= 4 and len(found) < len(lines)


def test_reader_goes_away(small):
    lines = "".join(json.dumps(line) + "\n" for line in requests(200, 24, 60)).encode()
    with start(small) as process:
        process.stdout.close()
        try:
            process.stdin.write(lines)
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.stdin = None
        assert process.wait(timeout=60) == 1


# --- spools ---

def events(path, code=0):
    done = sov.call("events", path, "--json")
    assert done.returncode == code, done.stderr.decode()
    return [json.loads(line)["data"] for line in done.stdout.splitlines()]


def test_spool(small, tmp_path):
    spool, lines = tmp_path / "spool", list(requests(60, 24, 80))
    first = batch(small, lines, "--events", spool)
    found = events(spool)
    by_sequence = {}
    for event in found:
        by_sequence.setdefault(event["sequence_id"], []).append(event)
    finished = {rows[-1]["transition_digest"]: rows for rows in by_sequence.values()}
    assert len(finished) == 60
    for answer in answers(first):
        rows = finished[answer["digest"]]
        assert [row["event_type"] for row in rows] == \
            ["admitted"] + ["token"] * (len(rows) - 2) + ["finished"]
        tokens = [row["sampled_token_id"] for row in rows[1:-1]]
        assert tokens[:len(answer["tokens"])] == answer["tokens"]
        assert len(tokens) - len(answer["tokens"]) in (0, 1)  # an end token is no part of the answer
        assert rows[-1]["finish_reason"] == answer["finish_reason"]
        for row in rows:
            boundary = row["committed_token_count"] % 64 == 0 and row["event_type"] == "token"
            assert (row["checkpoint_receipt_hash"] is not None) == boundary
    assert any(row["checkpoint_receipt_hash"] for row in found)
    # Everything again, otherwise scheduled: all events were there.
    size = spool.stat().st_size
    again = batch(small, lines[::-1], "--events", spool, "--max-seqs", 7, "--kv-blocks", 20,
                  "--no-prefix-sharing", "-t", "1")
    assert f"events: {len(found)} written, {len(found)} were there".encode() in again.stderr
    assert spool.stat().st_size == size
    assert sorted(again.stdout.splitlines()) == sorted(first.stdout.splitlines())
    # The same id with another prompt contradicts what is recorded; its neighbour does not.
    other = [{**lines[1], "prompt": "another"}, {"id": "new", "prompt": "x", "max_tokens": 2}]
    found = {answer["id"]: answer for answer in
             answers(batch(small, other, "--events", spool, code=1))}
    assert found[lines[1]["id"]]["error"]["code"] == "SOV_ERR_INTEGRITY"
    assert len(found["new"]["tokens"]) <= 2
    events(spool)


def test_killed_and_started_again(small, tmp_path):
    """kill -9 at any moment: the spool is a beginning, and a second run completes it."""
    spool, lines = tmp_path / "spool", list(requests(80, 24, 60))
    whole = batch(small, lines, "--events", tmp_path / "whole")
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    for delay in (0.05, 0.1, 0.2):
        with start(small, "--events", spool, "-t", "1", "--max-seqs", 8) as process:
            process.stdin.write(text)
            process.stdin.flush()
            time.sleep(delay)
            process.kill()
            process.communicate()
        if spool.exists() and spool.stat().st_size >= 16:
            events(spool)
    last = batch(small, lines, "--events", spool)
    assert sorted(last.stdout.splitlines()) == sorted(whole.stdout.splitlines())

    def content(path):
        return sorted((row["sequence_id"], row["monotonic_sequence_number"],
                       row["transition_digest"]) for row in events(path))
    assert content(spool) == content(tmp_path / "whole")


def test_interrupted_and_run_again(small, tmp_path):
    """Ctrl-C ends no sequence in the spool: the same batch completes it."""
    spool, lines = tmp_path / "spool", list(requests(40, 24, 200))
    lines = [{**line, "ignore_eos": True} for line in lines]
    with start(small, "--events", spool, "--max-seqs", 6, "-t", "1") as process:
        process.stdin.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        process.stdin.flush()
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 130
    found = [json.loads(line) for line in [first, *out.splitlines()]]
    cancelled = [answer for answer in found if answer["finish_reason"] == "cancelled"]
    assert cancelled
    last = {row["sequence_id"]: row for row in events(spool)}
    unfinished = [row["transition_digest"] for row in last.values() if row["event_type"] != "finished"]
    assert sorted(unfinished) == sorted(answer["digest"] for answer in cancelled)
    again = batch(small, lines, "--events", spool)
    assert sorted(again.stdout.splitlines()) == sorted(batch(small, lines).stdout.splitlines())
    assert {row["event_type"] for row in
            {row["sequence_id"]: row for row in events(spool)}.values()} == {"finished"}


def test_spool_that_cannot_grow(small, tmp_path):
    """A full disk ends the spool with a message, not the batch."""
    import resource
    lines = list(requests(40, 24, 40))

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    spool = tmp_path / "spool"
    done = batch(small, lines, "--events", spool, "--no-record", code=1, preexec_fn=limit)
    assert len(answers(done)) == 40 and b"EFBIG" in done.stderr
    assert b"not all could be written" in done.stderr
    table = sov.call("events", spool)
    assert table.returncode == 0 and b"no whole event" in table.stderr
    assert len(table.stdout.splitlines()) == 1 + (20000 - 16) // 165
    plain = batch(small, lines)
    assert sorted(plain.stdout.splitlines()) == sorted(done.stdout.splitlines())
    os.truncate(spool, 1000)
    assert b"40 requests, 0 errors" in batch(small, lines, "--events", spool).stderr
    events(spool)
