"""Faults of devices that a worker finds by itself.

No test has a device: a library answers as NVIDIA's does, and tools print what vendors' do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import MakeWorker
from agents import script
from fake_nvml import FakeNvml
from foreign import program

from prefect_ft.worker.detectors import kernel_log, lines, vendor_tools
from prefect_ft.worker.detectors.lines import Named
from prefect_ft.worker.detectors.sources import Fault, MissingError, Standing

AER = "0000:3b:00.0"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "NVRM: Xid (PCI:0000:4f:00): 79, pid=1, GPU has fallen off",
            Named("PCI:0000:4f:00", "xid-79"),
            id="xid",
        ),
        pytest.param(
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            Named("0000:03:00", "xid-14"),
            id="an-old-driver's",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            Named("PCI:0009:01:00", "xid-154", "major"),
            id="a-reset-is-asked-for",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (No) to 0x2 (Node Reboot Required)",
            Named("PCI:0009:01:00", "xid-154", "critical"),
            id="a-reboot-is-asked-for",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            None,
            id="recovered",
        ),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 49 sourcetrack timeout",
            Named("PCI:0000:c1:00.0", "sxid-24007", "critical"),
            id="a-switch's-fatal",
        ),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 57 Minion Link",
            Named("PCI:0000:c1:00.0", "sxid-22013", "warning"),
            id="a-switch's-other",
        ),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002}", None, id="a-switch's-data"
        ),
        pytest.param(
            f"pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: {AER}",
            Named(AER, "pcie-aer-fatal"),
            id="aer",
        ),
        pytest.param(
            f"pcieport 0000:3a:00.0: AER: Uncorrectable (Fatal) error message received from {AER}",
            Named(AER, "pcie-aer-fatal"),
            id="aer-of-6",
        ),
        pytest.param(
            f"nvme {AER}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            Named(AER, "pcie-aer-fatal"),
            id="bus-error",
        ),
        pytest.param(
            "pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3b:00.0", None, id="corrected"
        ),
        pytest.param(
            "EDAC MC1: 1 UE memory read error on CPU_SrcID#0", Named("MC1", "memory-uncorrected"), id="memory"
        ),
        pytest.param("EDAC MC1: 1 CE memory read error on CPU_SrcID#0", None, id="corrected-memory"),
        pytest.param(
            "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 1: be00",
            Named("CPU 12", "machine-check"),
            id="mce",
        ),
        pytest.param(
            "EXT4-fs (md0): Remounting filesystem read-only", Named("md0", "fs-read-only"), id="read-only"
        ),
        pytest.param(
            "EXT4-fs error (device sda1): ext4_lookup:1700: inode #2", Named("sda1", "fs-error"), id="ext4"
        ),
        pytest.param(
            "EXT4-fs (dm-0): I/O error while writing superblock",
            Named("dm-0", "disk-io-error"),
            id="superblock",
        ),
        pytest.param(
            "XFS (nvme0n1): Filesystem has been shut down due to log error (0x2).",
            Named("nvme0n1", "fs-read-only"),
            id="xfs",
        ),
        pytest.param(
            "blk_update_request: I/O error, dev nvme1n1, sector 12 op 0x1",
            Named("nvme1n1", "disk-io-error"),
            id="disk",
        ),
        pytest.param(
            "blk_update_request: critical medium error, dev sdc, sector 2048 op 0x0",
            Named("sdc", "disk-io-error"),
            id="a-medium",
        ),
        pytest.param(
            "mlx5_core 0000:17:00.0: print_health_info:424: handling bad device here",
            Named("0000:17:00.0", "nic-fatal"),
            id="nic",
        ),
        pytest.param("EXT4-fs (sda1): mounted filesystem with ordered data mode", None, id="mounted"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_what_the_kernels_lines_name(line: str, expected: Named | None) -> None:
    assert list(lines.in_kernel_log(line)) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "[fault_manager] event_id: [0x80E18402] device_id: 3", Named("3", "80E18402"), id="in-brackets"
        ),
        pytest.param("event_id=0x80FA4E00, device id 5", Named("5", "80FA4E00"), id="device-behind"),
        pytest.param(
            "HBM MULTI BIT ECC, Uncorrectable ECC, device_id=3, event_id=0x80e01801, time us=6",
            Named("3", "80E01801"),
            id="small-digits",
        ),
        pytest.param(
            "[klogd.c:242][583733.716915] event_id=0x80c78008", Named("npu", "80C78008"), id="no-device"
        ),
        pytest.param("publisher.register_event(event_id=0x8001)", None, id="another-event"),
    ],
)
def test_what_lines_of_ascend_name(line: str, expected: Named | None) -> None:
    assert list(lines.in_output(line)) == ([expected] if expected else [])


def test_a_peers_lines_of_the_kernel_are_understood() -> None:
    """Each Xid and each SXid with a severity in the tests of gpud, a monitor that reads kernels' logs."""
    tests = program("gpud/components/accelerator/nvidia/xid/component_test.go", "github.com/leptonai/gpud")
    text = "".join(each.read_text("utf-8") for each in sorted(tests.parents[4].rglob("*_test.go")))
    told = set(re.findall(r'"([^"\n]*\bS?Xid \((?:PCI:)?[0-9a-f]{4}:[^"\n]*)"', text))
    wanted = {
        line
        for line in told
        if re.search(r"\): \d+, (?!Data|error|Unknown|unknown|Some)", line) and "(None)" not in line[-8:]
    }
    assert len(wanted) > 50
    assert {line for line in wanted if not list(lines.in_kernel_log(line))} == set()


def report(devices: dict[str, Any], overall: str = "Failure") -> str:
    """What `dcgmi health --check --json` prints of GPUs: dcgmi/Health.cpp, DcgmiOutput.cpp of DCGM 4.6."""
    body = {"Overall Health": {"value": overall}, "GPU": {"children": devices}}
    return json.dumps(
        {
            "body": body if devices else {"Overall Health": {"value": overall}},
            "header": ["Health Monitor Report"],
        }
    )


def test_what_dcgm_reports() -> None:
    errors = {
        "Memory system": {"value": "Failure", "overflow": ["Row remapping has failed", "on GPU 3."]},
        "NVLink system": {"value": "Warning"},
    }
    found = list(
        vendor_tools.dcgm_faults(
            report({"3": {"value": "Failure", "children": {"Errors": {"children": errors}}}})
        )
    )
    assert found == [
        Fault("3", "dcgm-memory", "major", "DCGM: Memory system: Row remapping has failed on GPU 3."),
        Fault("3", "dcgm-nvlink", "warning", "DCGM: NVLink system: "),
    ]
    assert list(vendor_tools.dcgm_faults(report({}, "Healthy"))) == []


@pytest.mark.parametrize(
    "text", ["", "Error: unable to establish a connection", "[]", '{"body": null}', "{", '{"body": {}}']
)
def test_what_is_no_report_of_dcgm(text: str) -> None:
    with pytest.raises(ValueError, match=r"no report|Expecting|JSON"):
        list(vendor_tools.dcgm_faults(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("\tHealth Status                  : OK\n", [], id="ok"),
        pytest.param("\tHealth Status                  : Alarm\n", [("npu-alarm", "major")], id="alarm"),
        pytest.param(
            "\tHealth                         : Critical\n\tError Code : 0x80e18402\n",
            [("80E18402", None)],
            id="code",
        ),
        pytest.param("no such device", [], id="nothing"),
    ],
)
def test_what_npu_smi_reports(text: str, expected: list[tuple[str, str | None]]) -> None:
    assert [(each.code, each.severity) for each in vendor_tools.npu_faults("2", text)] == expected


def test_a_fault_that_stands_is_one_until_it_comes_back() -> None:
    standing, fault = Standing(), Fault("0", "dcgm-memory", "major", "m")
    assert [list(standing.new(each)) for each in ([fault], [fault], [], [fault])] == [
        [fault],
        [],
        [],
        [fault],
    ]


# -- the process --------------------------------------------------------------------------------------


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml")


@pytest.fixture
def tools(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return what makes a tool of a vendor's name that does this in a shell."""
    (tmp_path / "bin").mkdir()

    def make(name: str, code: str) -> Path:
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/sh\n{code}\n")
        file.chmod(0o755)
        return file

    return make


class Watching:
    """The process that looks, until it is closed."""

    def __init__(self, *kinds: str, **env: str) -> None:
        words = [sys.executable, "-m", "prefect_ft.worker.detectors", "0.01", *kinds]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, env={**os.environ, **env}, text=True)

    def next(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert self.process.wait(30) == 0


@pytest.fixture
def watch() -> Iterator[Callable[..., Watching]]:
    begun: list[Watching] = []

    def begin(*kinds: str, **env: str) -> Watching:
        begun.append(Watching(*kinds, **env))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param([("xid", 95)], [("1", "xid-95")], id="an-event"),
        pytest.param([("xid", 31), ("xid", 79)], [("1", "xid-31"), ("1", "xid-79")], id="two"),
        pytest.param([("rows", "1 0")], [("1", "row-remap-pending")], id="a-row-waits"),
        pytest.param(
            [("rows", "1 0"), ("rows", "1 1")],
            [("1", "row-remap-pending"), ("1", "row-remap-failed")],
            id="a-row-is-lost",
        ),
        pytest.param([("ecc", 2)], [("1", "ecc-uncorrected")], id="ecc"),
        pytest.param([("links", 0)], [("1", "nvlink-down")], id="a-link"),
        pytest.param([("lost", 1)], [("1", "gpu-lost")], id="lost"),
    ],
)
def test_what_nvidias_library_tells(
    said: list[tuple[str, object]],
    expected: list[tuple[str, str]],
    nvml: FakeNvml,
    watch: Callable[..., Watching],
) -> None:
    watching = watch("nvml", **nvml.env)
    assert watching.next() == {"by": ["nvml"], "why_not": {}}
    found = []
    for name, content in said:
        nvml.say(name, content)
        fault = watching.next()["fault"]
        found.append((fault["device"], fault["code"]))
    assert found == expected


def test_how_a_device_is_at_first_is_as_it_is_but_for_what_cannot_stay(
    nvml: FakeNvml, watch: Callable[..., Watching]
) -> None:
    """Links that were down and errors that were counted before are not this run's; a lost row is."""
    for name, content in (("links", 0), ("ecc", 7), ("rows", "1 1")):
        nvml.say(name, content)
    watching = watch("nvml", **nvml.env)
    told = [watching.next(), watching.next()]
    assert told[1]["fault"]["code"] == "row-remap-failed"
    nvml.say("xid", 48)
    assert watching.next()["fault"]["code"] == "xid-48"


@pytest.mark.parametrize("seen", ["", "-1", "7", "GPU-c", "GPU-", "0,0", "1,GPU-b"])
def test_where_ranks_see_no_device_none_is_looked_at(
    seen: str, nvml: FakeNvml, watch: Callable[..., Watching]
) -> None:
    told = watch("nvml", CUDA_VISIBLE_DEVICES=seen, **nvml.env).next()
    assert told == {"by": [], "why_not": {"nvml": "no NVIDIA device can be asked"}}


@pytest.mark.parametrize("seen", ["1", "GPU-b", "1,0", "MIG-GPU-bbcdef01-2345/0/0", "MIG-7"])
def test_devices_that_ranks_see_are_looked_at(
    seen: str, nvml: FakeNvml, watch: Callable[..., Watching]
) -> None:
    nvml.say("rows", "1 1")
    watching = watch("nvml", CUDA_VISIBLE_DEVICES=seen, **nvml.env)
    assert [watching.next()["by"], watching.next()["fault"]["device"]] == [["nvml"], "1"]


@pytest.mark.parametrize("seen", ["0", "GPU-abcdef", "0,7,1", "0,-1,1", " 0 "])
def test_devices_that_ranks_do_not_see_are_not_looked_at(
    seen: str, nvml: FakeNvml, watch: Callable[..., Watching]
) -> None:
    nvml.say("rows", "1 1")
    watching = watch("nvml", CUDA_VISIBLE_DEVICES=seen, **nvml.env)
    assert watching.next()["by"] == ["nvml"]
    nvml.say("lost", 1)
    nvml.say("xid", 79)  # of device 1, as all of it
    while (nvml.directory / "xid").exists():
        assert watching.process.poll() is None
        time.sleep(0.002)
    watching.process.kill()
    assert watching.process.stdout is not None
    assert watching.process.stdout.read() == ""
    watching.process.returncode = 0


def test_tools_are_asked_again_and_again(
    tools: Callable[[str, str], Path], tmp_path: Path, watch: Callable[..., Watching]
) -> None:
    state = tmp_path / "dcgm.json"
    state.write_text(report({}, "Healthy"))
    tools("dcgmi", f"cat {state}")
    tools(
        "npu-smi",
        'if [ "$2" = -l ]; then echo "    NPU ID                         : 4"; else echo " Health Status : Alarm"; fi',
    )
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    watching = watch("dcgm", "npu", PATH=path)
    told = [watching.next(), watching.next()]
    assert {"by": ["dcgm", "npu"], "why_not": {}} in told
    assert [each["fault"]["code"] for each in told if "fault" in each] == ["npu-alarm"]
    new = tmp_path / "new.json"
    new.write_text(
        report({"0": {"children": {"Errors": {"children": {"PCIe system": {"value": "Failure"}}}}}})
    )
    new.replace(state)
    assert watching.next()["fault"] == {
        "device": "0",
        "code": "dcgm-pcie",
        "severity": "major",
        "message": "DCGM: PCIe system: ",
    }


def test_what_is_not_there_is_said(watch: Callable[..., Watching], tmp_path: Path) -> None:
    watching = watch("nvml", "dcgm", "npu", PATH=str(tmp_path))
    told = watching.next()
    assert (told["by"], sorted(told["why_not"])) == ([], ["dcgm", "npu", "nvml"])
    assert told["why_not"]["dcgm"] == "dcgmi is not installed"


def test_the_kernels_log_is_read_by_journalctl_where_it_cannot_be_opened(
    tools: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools("journalctl", 'echo "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."; echo quiet')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    found = kernel_log.faults(str(tmp_path / "kmsg"))
    assert [next(found), next(found), next(found)] == [
        None,
        Fault(
            "PCI:0000:4f:00", "xid-79", None, "NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."
        ),
        None,
    ]
    with pytest.raises(MissingError, match="journalctl ended with 0"):
        next(found)


@pytest.mark.skipif(not os.access(kernel_log.KMSG, os.R_OK), reason="needs to read /dev/kmsg")
def test_this_machines_log_is_read_from_its_end() -> None:
    assert next(kernel_log.faults()) is None


def test_kernel_and_nvml_report_a_device_under_the_same_name(
    nvml: FakeNvml,
) -> None:
    """NVML counts devices, the kernel names their places: one Xid would be healed and counted twice."""
    script = """
        import sys
        from prefect_ft.worker.detectors import nvml
        first = next(nvml.faults(9.0))
        print(first, *map(nvml.number_at, sys.argv[1:]))
    """
    names = ["PCI:0000:4f:00", "PCI:0000:1b:00", "00000000:4F:00.0", "PCI:0000:99:00", "md0", "3"]
    words = [sys.executable, "-c", textwrap.dedent(script), *names]
    told = subprocess.run(words, env={**os.environ, **nvml.env}, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["None", "1", "0", "1", "PCI:0000:99:00", "md0", "3"]


# -- resetting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "code", "expected"),
    [
        pytest.param("3", "xid-95", (0, "--gpu-reset -i 3"), id="by-number"),
        pytest.param("PCI:0000:4f:00", "xid-95", (0, "--gpu-reset -i 0000:4f:00.0"), id="by-place"),
        pytest.param("2", "80FA4E00", (0, "set -t reset -i 2 -c 0"), id="ascend"),
        pytest.param("7", "xid-95", (1, "in use by 4242"), id="in-use"),
        pytest.param("9", "xid-95", (1, "nvidia-smi exited with 3: cannot"), id="fails"),
        pytest.param("md0", "fs-error", (1, "not a fault that a device reset repairs"), id="no-device"),
        pytest.param("$(id)", "xid-95", (1, "neither a number nor a PCI address"), id="no-name"),
    ],
)
def test_a_device_is_reset_by_its_vendors_tool_where_nobody_uses_it(
    device: str, code: str, expected: tuple[int, str], tools: Callable[[str, str], Path], tmp_path: Path
) -> None:
    done = tmp_path / "done"
    used = 'case "$*" in *query*-i\\ 7) echo 4242; exit;; *query*) exit;; *-i\\ 9) echo cannot >&2; exit 3;; esac\n'
    for name in ("nvidia-smi", "npu-smi"):
        tools(name, f'{used}echo "$@" >> {done}')
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    told = subprocess.run(
        [sys.executable, "-m", "prefect_ft.worker.detectors.reset"],
        env={**env, "PREFECT_FT_DEVICE": device, "PREFECT_FT_CODE": code},
        capture_output=True,
        text=True,
        check=False,
    )
    was_reset = done.read_text().strip() if done.exists() else ""
    assert told.returncode == expected[0]
    assert expected[1] in (was_reset or told.stderr)


# -- the agent ----------------------------------------------------------------------------------------


def test_an_agent_tells_what_it_found_and_lets_go_when_the_ranks_end(
    make_worker: MakeWorker, nvml: FakeNvml
) -> None:
    agent = make_worker(nvml.env, detect={"by": ["nvml", "dcgm"], "every_s": 0.01})
    client = agent.attached()
    client.start(script("import signal; signal.pause()"))
    begun = client.expect("detecting")
    assert (begun["by"], begun["why_not"]) == (["nvml"], {"dcgm": "dcgmi is not installed"})
    nvml.say("xid", 95)
    found = client.expect("detected")
    assert found["report"] == {
        "device": "1",
        "code": "xid-95",
        "severity": None,
        "message": "NVML: Xid 95 on device 1",
    }
    again = agent.attached()
    assert again.expect("detected") == found
    assert again.expect("detecting")["by"] == ["nvml"]
    assert len(looking(agent.home)) == 1
    again.stop()
    assert looking(agent.home) == []
    again.start(script("import signal; signal.pause()"), attempt=2)
    assert again.expect("detecting", token=[1, 0, 2])["by"] == ["nvml"]
    again.stop(attempt=2)


def looking(home: Path) -> list[int]:
    """The processes below an agent that look for faults."""
    agent = int((home / "agent.pid").read_text().split()[0])
    told = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(agent)], capture_output=True, text=True, check=False
    )
    return [
        int(line.split()[0]) for line in told.stdout.splitlines() if "prefect_ft.worker.detectors" in line
    ]
