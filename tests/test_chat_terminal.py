# SPDX-License-Identifier: Apache-2.0
"""sov chat on a terminal: keys, history, pasted text, Ctrl-C and Ctrl-D, on a pseudo-terminal."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import pytest

import chat_models
import sov

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
          "'<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}")
TIMEOUT = 30
PROMPT = b"\r> \x1b[K\r\x1b[2C"  # an empty line, drawn


class Terminal:
    """A running `sov chat` whose stdin, stdout and stderr are one terminal."""

    def __init__(self, *arguments, columns=80, kind="xterm", program=sov.SOV):
        if not program.exists():
            pytest.skip(f"{program} is not built")
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execve(program, ["sov", "chat", *map(str, arguments)],
                      dict(os.environ, TERM=kind))
        self.output = b""
        self.settings = None

    def expect(self, wanted):
        """Reads until the bytes are there; gives everything up to their end."""
        deadline = time.monotonic() + TIMEOUT
        while wanted not in self.output:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.screen], [], [], left)[0], \
                f"{wanted!r} did not come: {self.output[-500:]!r}"
            try:
                piece = os.read(self.screen, 65536)
            except OSError:  # the other end is closed
                piece = b""
            assert piece, f"the end came before {wanted!r}: {self.output[-500:]!r}"
            self.output += piece
        end = self.output.index(wanted) + len(wanted)
        head, self.output = self.output[:end], self.output[end:]
        return head

    def prompt(self):
        """Waits for an empty prompt, drawn when keys are read one by one."""
        head = self.expect(PROMPT)
        self.settings = self.settings or termios.tcgetattr(self.screen)
        return head

    def send(self, keys):
        os.write(self.screen, keys)

    def wait(self):
        """The exit code."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            assert time.monotonic() < deadline, "it does not end"
            if select.select([self.screen], [], [], 0.01)[0]:
                try:
                    self.output += os.read(self.screen, 65536)
                except OSError:
                    pass
        os.close(self.screen)
        return os.waitstatus_to_exitcode(status)

    def answer(self):
        """The next JSON line."""
        self.expect(b'{"model"')
        line = self.expect(b"}}\r\n")
        return json.loads(b'{"model"' + line)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return chat_models.write_model(tmp_path_factory.mktemp("terminal") / "m.gguf",
                                   chat_models.bpe_keys(CHATML), context=1 << 16)


OPTIONS = ["--json", "-n", "1", "--greedy", "-t", "1"]


def last_message(path, answer):
    ids = " ".join(map(str, answer["prompt_tokens"])).encode()
    text = sov.succeed("detokenize", "-m", path, "--special", stdin=ids).stdout
    return re.findall(rb"<\|im_start\|>user\n(.*?)<\|im_end\|>", text, re.S)[-1].decode()


LEFT, RIGHT, UP, DOWN = b"\x1b[D", b"\x1b[C", b"\x1b[A", b"\x1b[B"
HOME, END, DELETE = b"\x1b[H", b"\x1b[F", b"\x1b[3~"
PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"
A_ACUTE = "a\u0301".encode()  # two code points, one character
EDITS = {
    "typing": (b"hello", "hello"),
    "left": (b"helo" + LEFT + b"l", "hello"),
    "ctrl-b and ctrl-f": (b"hlo\x02\x02e\x06l", "hello"),
    "right at the end": (b"ab" + RIGHT + b"c", "abc"),
    "left at the start": (b"b" + LEFT * 3 + b"a", "ab"),
    "application keys": (b"ac\x1bODb", "abc"),
    "home and end": (b"bc" + HOME + b"a" + END + b"d", "abcd"),
    "other home and end": (b"bc\x1b[1~a\x1b[4~d", "abcd"),
    "ctrl-a and ctrl-e": (b"bc\x01a\x05d", "abcd"),
    "backspace": (b"abx\x7fc", "abc"),
    "ctrl-h": (b"abx\x08c", "abc"),
    "backspace at the start": (b"a" + HOME + b"\x7fb", "ba"),
    "delete": (b"abxc" + LEFT * 2 + DELETE, "abc"),
    "delete at the end": (b"abc" + DELETE, "abc"),
    "ctrl-d inside a line": (b"xabc" + HOME + b"\x04", "abc"),
    "ctrl-u": (b"wrong right" + LEFT * 5 + b"\x15", "right"),
    "ctrl-k": (b"right wrong" + LEFT * 6 + b"\x0b", "right"),
    "ctrl-w": (b"one two  three  \x17", "one two  "),
    "ctrl-w in the middle": (b"one two three" + LEFT * 6 + b"\x17", "one  three"),
    "alt-backspace": (b"one two\x1b\x7f", "one "),
    "by words": (b"two four\x1b[1;5D\x1b[1;5D\x1b[1;5Done \x1b[1;5C three", "one two three four"),
    "alt-b and alt-f": (b"b c\x1bb\x1bba \x1bf!", "a b! c"),
    "characters of several bytes": ("\u00fcx\U0001f600".encode() + LEFT + b"\x7f" + LEFT + b"a",
                                    "a\u00fc\U0001f600"),
    "a mark stays with its letter": (b"x" + A_ACUTE + LEFT + b"b", "xba\u0301"),
    "a mark goes with its letter": (b"x" + A_ACUTE + b"\x7fb", "xb"),
    "delete a letter with its mark": (A_ACUTE + b"b" + HOME + DELETE, "b"),
    "unknown keys": (b"a\x1b[15~\x1b[1;2P\x1bOP\x1bz\x00\x1c\x1fb", "ab"),
    "a broken escape": (b"a\x1b\x1b[Db" + END + b"\x1b[9999999999;1;2;3~c", "bac"),
    "tab": (b"a\tb", "a\tb"),
    "alt-enter": (b"one\x1b\rtwo", "one\ntwo"),
    "pasted lines": (PASTE + b"one\r\ntwo\nthree\rfour\n\nfive" + PASTED + b"!",
                     "one\ntwo\nthree\nfour\n\nfive!"),
    "pasted keys are text": (b"ab" + LEFT + PASTE + b"x\x15\x03\x04y" + PASTED, "axyb"),
    "a long line": (b"0123456789" * 40 + LEFT * 395 + b"\x7f" + END + b"!",
                    ("0123456789" * 40)[:4] + ("0123456789" * 40)[5:] + "!"),
}


@pytest.mark.parametrize("program", [sov.SOV, sov.BUILD / "sov-asan"], ids=lambda p: p.name)
def test_editing(tiny, program):
    """Every row is typed into one program; the message arrives as the row says."""
    terminal = Terminal("-m", tiny, *OPTIONS, program=program)
    for name, (keys, message) in EDITS.items():
        terminal.prompt()
        terminal.send(keys + b"\r")
        assert last_message(tiny, terminal.answer()) == message, name
        terminal.prompt()
        terminal.send(b"/clear\r")
    terminal.prompt()
    terminal.send(b"\x04")
    assert terminal.wait() == 0


@pytest.mark.parametrize("columns", [10, 20, 80])
def test_screen(tiny, columns):
    """What is drawn fits the screen, and the cursor stands where the next character goes."""
    terminal = Terminal("-m", tiny, *OPTIONS, columns=columns)
    terminal.prompt()
    text = "ab\u6f22\u5b57\u00e9cdefghijklmnopqrstuvwxyz\u65e5\u672c"
    widths = {c: 2 if c in "\u6f22\u5b57\u65e5\u672c" else 1 for c in text}
    for i, c in enumerate(text):
        terminal.send(c.encode())
        drawn = terminal.expect(b"C").decode()
        row = re.fullmatch(r"\r> (.*)\x1b\[K\r\x1b\[(\d+)C", drawn).group(1)
        cursor = int(re.search(r"(\d+)C$", drawn).group(1))
        assert text[:i + 1].endswith(row) and row.endswith(c)
        width = sum(widths[k] for k in row)
        assert cursor == 2 + width < columns
        assert width >= min(sum(widths[k] for k in text[:i + 1]), columns - 5)
    terminal.send(HOME)
    row = re.fullmatch(r"\r> (.*)\x1b\[K\r\x1b\[2C", terminal.expect(b"C").decode()).group(1)
    assert text.startswith(row) and sum(widths[k] for k in row) <= columns - 3
    terminal.send(b"\x15\x0b")
    terminal.prompt()
    terminal.send(b"\x0c")  # clears the screen, draws again
    assert b"\x1b[H\x1b[2J" in terminal.prompt()
    terminal.send(b"\x04")
    assert terminal.wait() == 0


def test_history(tiny):
    terminal = Terminal("-m", tiny, *OPTIONS)
    for message in (b"first", b"second", b"second", "\u00fcber".encode()):
        terminal.prompt()
        terminal.send(message + b"\r")
        terminal.answer()
    for keys, message in (
            (UP, "\u00fcber"),
            (UP * 2, "second"),  # once, though it was said twice
            (UP * 2, "\u00fcber"),  # the row above came between
            (UP * 20, "first"),
            (b"draft" + UP * 2 + DOWN * 9 + b"!", "draft!"),
            (b"\x10\x10\x0e", "draft!"),
            (UP + b"\x7f?", "draft?")):
        terminal.prompt()
        terminal.send(keys + b"\r")
        assert last_message(tiny, terminal.answer()) == message
    terminal.prompt()
    terminal.send(b"/exit\r")
    assert terminal.wait() == 0


def test_commands(tiny):
    terminal = Terminal("-m", tiny, *OPTIONS, "--seed", "7")
    banner = terminal.prompt()
    assert b"template chatml" in banner and b"seed 7" in banner
    terminal.send(b"/help\r")
    assert b"/clear" in terminal.prompt()
    terminal.send(b"   \r")
    terminal.prompt()
    terminal.send(b"/system Be good.\r")
    assert b"(system message: Be good.)" in terminal.prompt()
    terminal.send(b"hi\r")
    ids = " ".join(map(str, terminal.answer()["prompt_tokens"])).encode()
    text = sov.succeed("detokenize", "-m", tiny, "--special", stdin=ids).stdout
    assert text.startswith(b"<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nhi")
    terminal.prompt()
    terminal.send(b"/bye\r")
    assert terminal.wait() == 0


def test_interrupt_at_the_prompt(tiny):
    """Ctrl-C gives a line up; on an empty one it is said how to end; then it ends."""
    terminal = Terminal("-m", tiny, *OPTIONS)
    terminal.prompt()
    terminal.send(b"not sent\x03")
    terminal.expect(b"^C")
    terminal.prompt()
    terminal.send(b"sent\r")
    answer = terminal.answer()
    assert last_message(tiny, answer) == "sent" and len(answer["prompt_tokens"]) < 40
    terminal.prompt()
    terminal.send(b"\x03")
    terminal.expect(b"Ctrl-D or /exit ends")
    terminal.prompt()
    terminal.send(b"again\r")
    terminal.answer()
    terminal.prompt()
    terminal.send(b"\x03")
    terminal.expect(b"Ctrl-D or /exit ends")
    terminal.prompt()
    terminal.send(b"\x03")
    assert terminal.wait() == 130


LONG = ["-c", str(1 << 16), "--ignore-eos", "--greedy", "-t", "1"]


def test_interrupt_stops_an_answer(tiny):
    """Ctrl-C stops the answer, not the program; what was said stays in the conversation."""
    terminal = Terminal("-m", tiny, *LONG)
    for message in (b"one\r", b"two\r"):
        terminal.prompt()
        terminal.send(message)
        terminal.expect(message[:-1] + b"\x1b[K")
        terminal.expect(b"\x1b[?2004l")  # the answer begins
        time.sleep(0.2)
        terminal.send(b"\x03")
    terminal.prompt()
    terminal.send(b"/exit\r")
    assert terminal.wait() == 0


def test_interrupted_answer_is_kept(tiny):
    terminal = Terminal("-m", tiny, *LONG, "--json")
    terminal.prompt()
    terminal.send(b"one\r")
    terminal.expect(b"\x1b[?2004l")
    time.sleep(0.5)
    terminal.send(b"\x03")
    first = terminal.answer()
    assert first["finish_reason"] == "cancelled" and first["tokens"]
    terminal.prompt()
    terminal.send(b"two\r")
    terminal.expect(b"\x1b[?2004l")
    time.sleep(0.1)
    terminal.send(b"\x03")
    second = terminal.answer()
    n = len(first["prompt_tokens"])
    assert second["prompt_tokens"][n:n + len(first["tokens"])] == first["tokens"]
    terminal.prompt()
    terminal.send(b"\x04")
    assert terminal.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_give_the_terminal_back(tiny, number):
    """A signal from elsewhere ends the program at the prompt; SIGTERM also during an answer. The
    terminal is as before."""
    terminal = Terminal("-m", tiny, *LONG)
    terminal.prompt()
    raw = termios.tcgetattr(terminal.screen)
    assert not raw[3] & (termios.ICANON | termios.ECHO | termios.ISIG)
    keep = os.dup(terminal.screen)
    os.kill(terminal.pid, number)
    assert terminal.wait() == 130
    cooked = termios.tcgetattr(keep)
    assert cooked[3] & termios.ICANON and cooked[3] & termios.ECHO and cooked[3] & termios.ISIG
    assert cooked[0] & termios.ICRNL
    os.close(keep)
    if number == signal.SIGTERM:
        terminal = Terminal("-m", tiny, *LONG)
        terminal.prompt()
        terminal.send(b"one\r")
        terminal.expect(b"\x1b[?2004l")
        time.sleep(0.2)
        os.kill(terminal.pid, number)
        assert terminal.wait() == 130


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
def test_what_the_record_has_of_a_stopped_answer(tiny, tmp_path, how):
    """Ctrl-C is the user's end of it, SIGTERM an interruption, which sov resume finishes."""
    terminal = Terminal("-m", tiny, *LONG, "-c", "6000", "--store", tmp_path / "s")
    terminal.prompt()
    terminal.send(b"one\r")
    terminal.expect(b"\x1b[?2004l")
    time.sleep(0.1)
    if how == "ctrl-c":
        terminal.send(b"\x03")
        terminal.prompt()
        terminal.send(b"/exit\r")
        assert terminal.wait() == 0
    else:
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait() == 130
    listed, = sov.succeed("log", tmp_path / "s", "--json").stdout.splitlines()
    assert json.loads(listed)["state"] == ("cancel" if how == "ctrl-c" else "interrupted")
    done = sov.succeed("resume", tmp_path / "s", "-m", tiny)
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] == ("cancelled" if how == "ctrl-c" else "length")


def test_terminal_is_given_back_between_lines(tiny):
    """While an answer is made the terminal works as usual: Ctrl-C is a signal."""
    terminal = Terminal("-m", tiny, *LONG)
    terminal.prompt()
    terminal.send(b"one\r")
    terminal.expect(b"\x1b[?2004l")
    time.sleep(0.1)
    assert termios.tcgetattr(terminal.screen)[3] & termios.ISIG
    terminal.send(b"\x03")
    terminal.prompt()
    terminal.send(b"\x04")
    assert terminal.wait() == 0


def test_hang_up(tiny):
    terminal = Terminal("-m", tiny, *OPTIONS)
    terminal.prompt()
    os.close(terminal.screen)
    deadline = time.monotonic() + TIMEOUT
    while os.waitpid(terminal.pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < deadline, "it goes on without a terminal"
        time.sleep(0.01)


def test_dumb_terminal(tiny):
    """Without cursor movement: a prompt, and lines as the terminal gives them."""
    terminal = Terminal("-m", tiny, *OPTIONS, kind="dumb")
    terminal.expect(b"\r\n> ")
    terminal.send(b"hello\n")
    assert last_message(tiny, terminal.answer()) == "hello"
    terminal.expect(b"> ")
    assert b"\x1b[" not in terminal.output
    terminal.send(b"\x04")
    assert terminal.wait() == 0
