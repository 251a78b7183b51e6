# SPDX-License-Identifier: Apache-2.0
"""Power states from signals and from a folder of power supplies: a suspended run stands still and
then goes on with the same bits; a low battery changes speed only."""
import os
import signal
import subprocess
import time

import pytest

import sov

ARGUMENTS = ["-p", "The harbour was small, and", "-n", "120", "--ignore-eos", "--seed", "3", "-t", "1"]


def supplies(folder, battery=None, mains=None, mouse=None):
    """battery, mouse: (status, capacity); mains: online."""
    folder.mkdir()
    if battery is not None:
        (folder / "BAT0").mkdir()
        for name, text in (("type", "Battery"), ("status", battery[0]), ("capacity", battery[1])):
            (folder / "BAT0" / name).write_text(f"{text}\n")
    if mouse is not None:
        supplies(folder / "tmp", mouse)
        (folder / "tmp/BAT0/scope").write_text("Device\n")
        (folder / "tmp/BAT0").rename(folder / "hidpp_battery_0")
        (folder / "tmp").rmdir()
    if mains is not None:
        (folder / "AC").mkdir()
        (folder / "AC/type").write_text("Mains\n")
        (folder / "AC/online").write_text(f"{mains}\n")
    return folder


def output_of(model, *arguments):
    return sov.succeed("run", "-m", model, *ARGUMENTS, *arguments).stdout


def test_low_battery(tmp_path):
    model = sov.model("smollm2")
    expected = output_of(model)
    low = supplies(tmp_path / "low", ("Discharging", "7"), "0")
    assert output_of(model, "--power-supply", str(low)) == expected
    assert output_of(model, "--power-supply", str(tmp_path / "nothing")) == expected


@pytest.mark.parametrize("battery, mains, low", [
    (("Discharging", "19"), "0", True),
    (("Discharging", "19"), None, True),
    (("Discharging", "20"), "0", False),
    (("Discharging", "3"), "1", False),
    (("Charging", "3"), "0", False),
    (("Discharging", "many"), "0", False),
    (("Discharging", ""), "0", False),
    (None, "0", False),
    (None, None, False),
])
def test_folder(tmp_path, battery, mains, low):
    check_folder(supplies(tmp_path / "supplies", battery, mains), low)


def test_battery_of_a_mouse(tmp_path):
    """A device's own battery says nothing of the machine's."""
    mouse = ("Discharging", "5")
    check_folder(supplies(tmp_path / "desktop", mouse=mouse), False)
    check_folder(supplies(tmp_path / "low", ("Discharging", "9"), "0", mouse), True)
    check_folder(supplies(tmp_path / "full", ("Discharging", "90"), "0", mouse), False)


def check_folder(folder, low):
    for flavour in ("free", "asan"):
        subprocess.run([sov.BUILD / flavour / "test_power", "folders", f"FOLDER={folder}",
                        f"LOW={int(low)}"], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("program", ["sov", "sov-static"])
def test_suspend_and_resume(program):
    model = sov.model("smollm2")
    expected = output_of(model)
    process = subprocess.Popen([sov.BUILD / program, "run", "-m", model, *ARGUMENTS],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.set_blocking(process.stdout.fileno(), False)
    text = b""

    def read_for(seconds):
        end, read = time.monotonic() + seconds, b""
        while time.monotonic() < end:
            read += process.stdout.read() or b""
            time.sleep(0.01)
        return read

    while len(text) < 40:
        assert process.poll() is None
        text += read_for(0.02)
    process.send_signal(signal.SIGUSR1)
    text += read_for(0.5)  # the step in flight
    assert process.poll() is None
    assert read_for(0.7) == b"", "a suspended run goes on"
    process.send_signal(signal.SIGUSR2)
    while process.poll() is None:
        text += read_for(0.05)
    text += process.stdout.read() or b""
    assert process.returncode == 0
    assert text == expected


def test_interrupt_while_suspended():
    process = subprocess.Popen([sov.SOV, "run", "-m", sov.model("smollm2"), *ARGUMENTS],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.read(10)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 130
