"""A library that answers as NVML does for two devices: how they are stands in files, for tests without a device.

`xid`: the number of one event, taken when it is told; `rows`: `pending failure`; `ecc`: a count; `links`: whether
the second link is up; `lost`: whether the device is. All of device 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } event;
static long at(const char *name, int field, long unless) {
    char path[4096]; long told[2] = {unless, unless};
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    FILE *file = fopen(path, "r");
    if (!file) return unless;
    int read = fscanf(file, "%ld %ld", &told[0], &told[1]);
    fclose(file);
    return read > field ? told[field] : unless;
}
static int lost(void *device) { return device == (void *)0x101 && at("lost", 0, 0); }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(0x100UL + index); return 0; }
int nvmlDeviceGetUUID(void *device, char *told, unsigned size) {
    return snprintf(told, size, "GPU-%cbcdef01-2345", device == (void *)0x101 ? 'b' : 'a') < 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, unsigned *told) {
    told[4] = 0; told[5] = device == (void *)0x101 ? 0x4f : 0x1b; told[6] = 0;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *told) { told[0] = 50; told[1] = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *told) { return lost(device) ? 15 : 0; }
int nvmlEventSetCreate(void **set) { *set = (void *)0x900; return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) {
    return kinds == 0xA && set == (void *)0x900 ? 0 : 2;
}
int nvmlEventSetWait_v2(void *set, event *told, unsigned timeout_ms) {
    char path[4096];
    for (unsigned waited = 0; waited < timeout_ms; waited += 5) {
        long xid = at("xid", 0, -1);
        if (xid >= 0) {
            snprintf(path, sizeof path, "%s/xid", getenv("FAKE_NVML"));
            unlink(path);
            memset(told, 0, sizeof *told);
            told->device = (void *)0x101; told->type = 8; told->data = xid;
            return 0;
        }
        usleep(5000);
    }
    return 10;
}
int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned counter, unsigned long long *count) {
    if (lost(device)) return 15;
    *count = kind == 1 && counter == 0 && device == (void *)0x101 ? at("ecc", 0, 0) : 0;
    return 0;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failure) {
    *corrected = *not = 0;
    *pending = device == (void *)0x101 ? at("rows", 0, 0) : 0;
    *failure = device == (void *)0x101 ? at("rows", 1, 0) : 0;
    return 0;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    if (link >= 2) return 3;
    *active = link == 0 || device != (void *)0x101 ? 1 : at("links", 0, 1);
    return 0;
}
"""


class FakeNvml:
    """The devices' state; `env` is what a process needs to find the library."""

    def __init__(self, directory: Path) -> None:
        """Build it in a directory; the test is skipped without a C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler")
        self.directory = directory
        directory.mkdir()
        source = directory / "nvml.c"
        source.write_text(SOURCE)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-w", "-o", directory / "libnvidia-ml.so.1", source], check=True
        )
        self.env = {"LD_LIBRARY_PATH": str(directory), "FAKE_NVML": str(directory)}

    def say(self, name: str, content: object) -> None:
        """Have the devices be so from now on."""
        temporary = self.directory / f".{name}"
        temporary.write_text(str(content))
        os.replace(temporary, self.directory / name)
