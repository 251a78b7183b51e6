# SPDX-License-Identifier: Apache-2.0
"""sov replay: recorded tokens are what the model gives, on any threads, instruction set and batch; a
forger who computes every hash again is found. Over a small model with random weights; SmolLM2 too."""
import json
import random
from dataclasses import replace

import pytest

import chat_models
import sov
import store_writer as sw

SEED = 20266
CHATML = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>'"
          " + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
          "{% endif %}")
CONTEXT = 256
WORDS = "the old harbour was small and every captain knew each ship by name before coal came".split()


def small_model(path, seed=None):
    options = {} if seed is None else {"seed": seed}
    return chat_models.write_model(path, chat_models.bpe_keys(CHATML), n_layer=2, n_embd=64, n_ff=64,
                                   n_head=4, n_head_kv=2, context=CONTEXT, **options)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("replay") / "small.gguf")


def requests(n, tokens, words=12):
    """n requests of every kind, most of them as long as they may be."""
    rng = random.Random(SEED)
    shared = " ".join(rng.choice(WORDS) for _ in range(words))
    for i in range(n):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, words)))
        line = {"id": f"r{i:03}", "prompt": shared + " " + text if i % 3 == 0 else text,
                "max_tokens": tokens + rng.randrange(-20, 20), "ignore_eos": True}
        if i % 2:
            line["temperature"] = 0
        else:
            line.update(temperature=rng.choice([0.7, 1.0, 1.8]), top_k=rng.choice([0, 5, 40]),
                        top_p=rng.choice([0.9, 1.0]), seed=rng.getrandbits(64))
        if i % 5 == 1:
            line.update(frequency_penalty=0.5, repeat_penalty=1.1, repeat_last_n=32)
        if i % 7 == 3:
            line["logit_bias"] = {"5": -100, "6": 2.5}
        if i % 7 == 4:
            line["stop"] = ["zq", "\n\n"]
        if i % 8 == 6:
            line["messages"] = [{"role": "user", "content": line.pop("prompt")}]
        if i % 8 == 7:
            line["logprobs"] = 2
            del line["ignore_eos"]
        yield line


def record(model, store, lines, *options):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = sov.call("batch", "-m", model, "-", "--store", store, *options, stdin=text.encode())
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def replay(store, model, *options, code=0):
    """What is said of each sequence, and of all."""
    done = sov.call("replay", store, "-m", model, "--json", *options)
    assert done.returncode == code, (options, done.stderr.decode(), done.stdout.decode()[-400:])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {s["sequence"]: s for s in lines[:-1]}, lines[-1]


@pytest.fixture(scope="module")
def recorded(small, tmp_path_factory):
    """16 sequences of 2,000 tokens together."""
    store = tmp_path_factory.mktemp("replay") / "store"
    answers = record(small, store, requests(16, 130), "-t", "2")
    assert sum(a["usage"]["completion_tokens"] for a in answers) >= 2000 - 130
    return store, answers


def test_every_sequence_is_the_same(recorded, small):
    store, answers = recorded
    each, total = replay(store, small)
    assert total["same"] == total["sequences"] == 16 and total["different"] == 0
    assert {s["result"] for s in each.values()} == {"same"}
    # Every payload that the store has of a sequence was held against one that was made.
    listed = [json.loads(line) for line in sov.succeed("log", store, "--json").stdout.splitlines()]
    assert total["payloads"] == sum(s["checkpoints"] + 1 for s in listed)
    assert total["tokens"] == sum(s["tokens"] for s in listed)
    text = sov.succeed("replay", store, "-m", small).stdout.decode()
    assert "16 sequences: 16 the same" in text and total["head"] in text


@pytest.mark.parametrize("options", [
    ["-t", "1", "--force-isa", "scalar", "--max-seqs", "3"],
    ["-t", "2", "--force-isa", "avx2", "--max-seqs", "1", "--prefill-chunk", "5"],
    ["-t", "1", "--max-seqs", "64", "--no-prefix-sharing", "--kv-shuffle", "7"],
    ["-t", "2", "--max-seqs", "16", "--kv-blocks", "20"],
    ["-t", "2", "--max-seqs", "16", "--kv-blocks", "24", "--spill-blocks", "40"],
], ids=["scalar", "avx2 alone", "64 shuffled", "swapped", "spilled"])
def test_it_does_not_depend_on_how_it_is_run(recorded, small, options):
    _, total = replay(recorded[0], small, *options)
    assert total["same"] == 16


@pytest.mark.parametrize("form", ["full", "tokens"])
def test_other_forms_of_checkpoints(small, tmp_path, form):
    record(small, tmp_path / "s", requests(4, 140), "--checkpoint", form)
    _, total = replay(tmp_path / "s", small, "-t", "1", "--max-seqs", "2")
    assert total["same"] == 4
    data = (tmp_path / "s/log").read_bytes()
    kinds = {sw.read_checkpoint(r.payload).form for r in sw.read_records(data)
             if r.kind == sw.CHECKPOINT}
    assert kinds == {{"full": 1, "tokens": 2}[form]}


def test_runs_and_chats_too(small, tmp_path):
    """Requests of the other commands, several sessions in one store, two contexts."""
    store = tmp_path / "s"
    sov.succeed("run", "-m", small, "-p", "Once upon", "-n", "80", "--ignore-eos", "--seed", "3",
                "--store", store)
    sov.succeed("run", "-m", small, "-p", "the", "-c", "64", "--greedy", "--ignore-eos",
                "--store", store)
    sov.succeed("run", "-m", small, "-p", "a", "-n", "70", "--stop", "qq", "--seed", "9",
                "--store", store)
    sov.succeed("chat", "-m", small, "-n", "20", "--seed", "5", "--store", store,
                stdin=b"hello\nand again\n")
    each, total = replay(store, small)
    assert total["same"] == total["sequences"] == len(each) >= 5
    assert json.loads(sov.succeed("verify", store, "--json").stdout)["sessions"] == 4


# --- what is different ---

def forge_token(data, owner, index):
    return sw.forge(data, lambda states: (owner, index), lambda token: (token + 1) % 256)


def longest(data):
    """(owner, generated tokens) of the longest sequence."""
    ends = [sw.read_checkpoint(r.payload) for r in sw.read_records(data) if r.kind == sw.FINISH]
    return max((len(c.tokens) - c.n_prompt, c.sequence) for c in ends)[::-1]


def write(writer, folder):
    writer.write(folder)
    assert sov.call("verify", folder).returncode == 0  # hashes cannot tell
    return folder


@pytest.mark.parametrize("where", ["first", "63", "64", "last of all"])
def test_a_forged_token_is_found(recorded, small, tmp_path, where):
    """One token changed in all records, and every hash, event and receipt computed again."""
    store, answers = recorded
    data = (store / "log").read_bytes()
    owner, n = longest(data)
    index = {"first": 0, "63": 63, "64": 64, "last of all": n - 1}[where]
    head = json.loads(sov.succeed("verify", store, "--json").stdout)["head"]
    folder = write(forge_token(data, owner, index), tmp_path / "forged")
    assert sov.call("verify", folder, "--expect", head).returncode == 4  # whoever kept the head
    each, total = replay(folder, small, code=4)
    assert (total["same"], total["different"]) == (15, 1)
    found = each[f"{owner:016x}"]["difference"]
    tokens = next(a["tokens"] for a in answers if len(a["tokens"]) == n)
    assert found["place"] == "token" and found["generated"] == index + 1
    assert found["recorded"] == (found["computed"] + 1) % 256
    assert found["computed"] == tokens[index]  # the model's own, whatever the record says
    text = sov.call("replay", folder, "-m", small, "--sequence", f"{owner:016x}")
    assert text.returncode == 4 and b"likely cause: the record was changed" in text.stdout
    assert f"generated token {index + 1}: recorded is token".encode() in text.stdout


def changed(data, kind, change):
    """The log with the first payload of this kind changed that change() takes."""
    records = sw.read_records(data)
    for r in records:
        if r.kind != kind or r.payload is None:
            continue
        made = change(r)
        if made is not None:
            r.payload = made
            return sw.write_records(records), r.owner
    raise AssertionError("nothing to change")


def with_checkpoint(**fields):
    def change(r):
        c = sw.read_checkpoint(r.payload)
        if len(c.tokens) - c.n_prompt < 64:
            return None
        return replace(c, **{name: value(c) for name, value in fields.items()}).bytes()
    return change


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


@pytest.mark.parametrize("name,kind,change,place", [
    ("K and V of layer 1", sw.CHECKPOINT, with_checkpoint(digests=lambda c: flip(c.digests, 40)), "kv"),
    ("events", sw.CHECKPOINT, with_checkpoint(event_digest=lambda c: flip(c.event_digest, 0)), "events"),
    ("origin", sw.CHECKPOINT, with_checkpoint(origin=lambda c: flip(c.origin, 9)), "origin"),
    ("reason", sw.FINISH, with_checkpoint(finish=lambda c: 1 if c.finish == 2 else 2), "end"),
    ("prompt", sw.CHECKPOINT, with_checkpoint(tokens=lambda c: [c.tokens[0] ^ 1] + c.tokens[1:]),
     "prompt"),
    ("shorter", sw.FINISH, with_checkpoint(tokens=lambda c: c.tokens[:-1],
                                           event_number=lambda c: c.event_number - 1,
                                           end=lambda c: c.end - 1), "token"),
    ("seed", sw.REQUEST, lambda r: seed_changed(r.payload), "origin"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_what_differs_is_named(recorded, small, tmp_path, name, kind, change, place):
    data = (recorded[0] / "log").read_bytes()
    writer, owner = changed(data, kind, change)
    each, total = replay(write(writer, tmp_path / "forged"), small, code=4)
    assert total["different"] == 1
    found = each[f"{owner:016x}"]
    assert found["result"] == "different" and found["difference"]["place"] == place
    if place == "kv":
        assert found["difference"]["layer"] == 1


def seed_changed(payload):
    at = 16 + 8 + 3 + 4 + 4 + 1 + 4 + 1 + 4 + 6 * 4 + 2 * 4  # docs/format.md
    return flip(payload, at)


# --- the text beside the tokens ---

TEXTS = {  # what a request is made of, the text as it is recorded, and another one as long
    "run": (["run", "-p", "Once upon a time"], None, b"Once upon", b"Once more"),
    "special": (["run", "--special", "-p", "Once<|im_end|> upon"], None, b"Once<", b"Nine<"),
    "special as text": (["run", "-p", "Once<|im_end|> upon"], None, b" upon", b" over"),
    "message": (["run", "--chat", "-p", "Once upon"], None, b"Once", b"Nine"),
    "system": (["run", "--chat", "--system", "Be brief.\n", "-p", "push on"], None, b"push", b"posh"),
    "other template": (["run", "--chat", "--template", "llama2", "--system", "Be brief.", "-p",
                        "push on"], None, b"push", b"posh"),
    "chat": (["chat"], b"hello\nand again\nand once more\n", b"again", b"never"),
    "chat's last": (["chat", "--system", "Be brief."], b"hello\nand again\nand once more\n", b"more",
                    b"less"),
    "chat's first": (["chat", "--template", "gemma"], b"hello\nand again\n", b"hello", b"jello"),
    "prompt": (["batch", "-"], b'{"id":1,"prompt":"Once upon","max_tokens":5}', b"Once", b"Nine"),
    "messages": (["batch", "-"], b'{"id":1,"messages":[{"role":"user","content":"Once"}],'
                 b'"max_tokens":5}', b"Once", b"Nine"),
    "messages of another template": (
        ["batch", "-", "--template", "gemma"], b'{"id":1,"messages":[{"role":"user","content":"Once"}],'
        b'"max_tokens":5}', b"Once", b"Nine"),
    "ids": (["batch", "-"], b'{"id":1,"tokens":[5,6,7],"max_tokens":5}', b"5,6", b"6,5"),
    "parameter": (["batch", "-"], b'{"id":1,"prompt":"Once","top_k":7}', b":7", b":8"),
    "not json": (["batch", "-"], b'{"id":1,"prompt":"Once"}', b'e"}', b'e")'),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_forged_text_is_found(small, tmp_path, name):
    arguments, stdin, text, other = TEXTS[name]
    limit = [] if arguments[0] == "batch" else ["-n", "5"]
    sov.succeed(*arguments, *limit, "-m", small, "--store", tmp_path / "s",
                stdin=stdin or b"")
    each, total = replay(tmp_path / "s", small)
    assert total["same"] == total["sequences"] >= 1
    writer, owner = changed((tmp_path / "s/log").read_bytes(), sw.REQUEST,
                            lambda r: r.payload.replace(text, other) if text in r.payload else None)
    assert len(text) == len(other)
    each, total = replay(write(writer, tmp_path / "forged"), small, code=4)
    found = each[f"{owner:016x}"]
    assert total["different"] == 1 and found["difference"]["place"] == "text"
    told = sov.call("replay", tmp_path / "forged", "-m", small)
    assert told.returncode == 4
    assert b"the text of the prompt is not what the tokens say" in told.stdout


ODD = ["x", " leads and trails \n\n", "two\n\nparts", "a<|im_end|>b", "\u00fcber \u4e2d\u6587", "(1)", "[2]"]


@pytest.mark.parametrize("vocabulary", ["bpe", "spm"])
def test_what_was_recorded_is_never_called_forged(tmp_path, vocabulary):
    """Every template that the vocabulary knows, with and without a system message, first and later
    messages, plain text in every way."""
    keys = chat_models.bpe_keys(CHATML) if vocabulary == "bpe" else chat_models.spm_keys(CHATML)
    model = chat_models.write_model(tmp_path / "m.gguf", keys, n_layer=1, n_embd=64, n_ff=64, n_head=4,
                                    n_head_kv=2, context=CONTEXT)
    common = ["-m", model, "-n", "3", "--greedy", "--ignore-eos", "--store", tmp_path / "s"]
    n = 0
    for i, text in enumerate(ODD):
        for option in ([], ["--special"]):
            sov.succeed("run", "-p", text, *option, *common)
            n += 1
        names = sov.succeed("template").stdout.decode().strip().split(", ")
        for name in names if i < 1 or sov.FULL else names[i::9]:
            for system in ([], ["--system", "Be brief."], ["--system", text]):
                done = sov.call("run", "--chat", "--template", name, *system, "-p", text, *common)
                if done.returncode == 0:
                    n += 1
                else:  # markers that the vocabulary has not
                    assert done.returncode == 3, done.stderr
                    continue
                lines = f"{text.strip().split(chr(10))[0]}\n{text.strip().split(chr(10))[-1]}\n\nx\n"
                sov.succeed("chat", "--template", name, *system, *common, stdin=lines.encode())
    _, total = replay(tmp_path / "s", model)
    assert total["same"] == total["sequences"] > n > 2 * len(ODD), total


def test_the_position_of_other_bytes(small, tmp_path):
    """In the form "full" the record has K and V, and the position is named too."""
    record(small, tmp_path / "s", list(requests(2, 140)), "--checkpoint", "full")
    data = (tmp_path / "s/log").read_bytes()

    def change(r):
        c = sw.read_checkpoint(r.payload)
        if not c.rows:
            return None
        at = (c.end - c.begin + 7) * c.row_bytes + 3  # layer 1, position begin + 7
        rows = flip(c.rows, at)
        layer = rows[len(rows) // 2:]
        return replace(c, rows=rows, digests=c.digests[:32] + sw.digest(layer)).bytes()

    writer, owner = changed(data, sw.CHECKPOINT, change)
    each, _ = replay(write(writer, tmp_path / "forged"), small, code=4)
    found = each[f"{owner:016x}"]["difference"]
    assert (found["place"], found["layer"], found["position"]) == ("kv", 1, 7)


# --- what cannot be checked here ---

def test_another_model_is_refused_with_both_digests(recorded, small, tmp_path):
    import hashlib
    other = small_model(tmp_path / "other.gguf", seed=77)
    digests = [hashlib.sha256(open(p, "rb").read()).hexdigest() for p in (small, other)]
    done = sov.call("replay", recorded[0], "-m", other)
    assert done.returncode == 3
    assert all(d.encode() in done.stdout for d in digests)
    each, total = replay(recorded[0], other, code=3)
    assert total["not_checkable"] == 16 and total["tokens"] == 0


def test_other_refusals(recorded, small, tmp_path):
    store, _ = recorded
    for arguments, code in ((["replay", store], 2), (["replay", "-m", small], 2),
                            (["replay", store, "-m", small, "--sequence", "x"], 2),
                            (["replay", store, "-m", tmp_path / "none.gguf"], 3),
                            (["replay", tmp_path / "none", "-m", small], 3),
                            (["replay", store, "-m", small, "--sequence", "0" * 16], 3)):
        done = sov.call(*arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert done.stderr.startswith(b"sov: ")
    bad = tmp_path / "bad"
    bad.mkdir()
    data = (store / "log").read_bytes()
    (bad / "log").write_bytes(flip(data, len(data) // 2))
    done = sov.call("replay", bad, "-m", small)
    assert done.returncode == 4 and b"verify" in done.stderr


def test_payloads_that_make_no_sense_are_told(recorded, small, tmp_path):
    """Bytes under right hashes that are no payload: not checkable, and the others are checked."""
    data = (recorded[0] / "log").read_bytes()
    writer, owner = changed(data, sw.CHECKPOINT, lambda r: r.payload + b"x")
    each, total = replay(write(writer, tmp_path / "a"), small, code=3)
    assert each[f"{owner:016x}"]["result"] == "not checkable" and total["same"] == 15
    writer, owner = changed(data, sw.REQUEST, lambda r: b"not a request")
    each, total = replay(write(writer, tmp_path / "b"), small, code=3)
    assert each[f"{owner:016x}"]["result"] == "not checkable" and total["same"] == 15


# --- SmolLM2 ---

def test_smollm2(tmp_path):
    """In the long form 16 sequences of 2,000 tokens; else 4 of 280."""
    model = sov.model("smollm2")
    n, tokens = (16, 135) if sov.FULL else (4, 70)
    lines = list(requests(n, tokens))
    for line in lines:
        line["max_tokens"] = tokens
    answers = record(model, tmp_path / "s", lines, "-c", "512")
    n_tokens = sum(a["usage"]["completion_tokens"] for a in answers)
    assert n_tokens > (2000 if sov.FULL else 4 * 60)
    runs = [["-t", "1", "--force-isa", "avx2", "--max-seqs", "3"]]
    if sov.FULL:
        runs += [["-t", "2", "--max-seqs", "16"], ["-t", "2", "--force-isa", "avx2"],
                 ["-t", "1", "--max-seqs", "5", "--kv-blocks", "40", "--prefill-chunk", "11"]]
    for options in runs:
        _, total = replay(tmp_path / "s", model, *options)
        assert total["same"] == n
    data = (tmp_path / "s/log").read_bytes()
    owner, n_generated = longest(data)
    writer = forge_token(data, owner, n_generated // 2)
    each, total = replay(write(writer, tmp_path / "forged"), model, "--sequence", f"{owner:016x}",
                         code=4)
    assert each[f"{owner:016x}"]["difference"]["generated"] == n_generated // 2 + 1
