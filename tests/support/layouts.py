"""Checkpoints of every layout, as small as they can be, and how they are written."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import zstandard

Tree = dict[str, bytes]


def torch_zip(members: dict[str, bytes], wide: bool = False) -> bytes:
    """Write what torch.save writes: stored members at multiples of 64 bytes, zip64 end records always.

    `wide` has the sizes and offsets in the extra field too, as members above 4 GiB have them.
    """
    body, directory = b"", b""
    for name, data in members.items():
        stored = f"archive/{name}".encode()
        padding = -(len(body) + 30 + len(stored) + 4) % 64
        extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
        sizes, offset, more = (len(data), len(data)), len(body), b""
        if wide:
            more = b"XX\1\0?" + struct.pack("<2H3Q", 1, 24, *sizes, offset)
            sizes, offset = (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF
        head = (0, 0, 0, 0, zlib.crc32(data))
        tail = (len(stored), len(more), 0, 0, 0, 0, offset)
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 0, *head, len(data), len(data), len(stored), len(extra))
        body += stored + extra + data
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 0, 0, *head, *sizes, *tail) + stored + more
    counts = (len(members), len(members), len(directory), len(body))
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, *counts)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(body) + len(directory), 1)
    return body + directory + end64 + locator + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *counts, 0)


def torch_file(**state: object) -> bytes:
    return torch_zip({"data.pkl": pickle.dumps(state, protocol=2), "data/0": b"\1" * 16, "version": b"3\n"})


def plain_zip(comment: bytes = b"") -> bytes:
    """Write a zip as Python does, as numpy.savez and Keras use it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("weight.npy", b"\x93NUMPY" + b"\2" * 40)
        archive.writestr("bias.npy", b"\x93NUMPY" + b"\3" * 20)
        archive.comment = comment
    return buffer.getvalue()


def safetensors(**tensors: int) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"\7" * place


def dcp_metadata(*shards: str) -> bytes:
    return pickle.dumps(
        {number: {"relative_path": shard, "dot": "."} for number, shard in enumerate(shards)}, 4
    )


def manifest(**sizes: int) -> bytes:
    return json.dumps({"files": [{"path": name, "size": size} for name, size in sizes.items()]}).encode()


def ocdbt(magic: bytes) -> bytes:
    """Write what every manifest and node of TensorStore begins with: its magic number and its length."""
    return magic + struct.pack("<Q", 40) + b"\5" * 28


class Example(NamedTuple):
    """A checkpoint of step 200: name, files (`../x` lies beside it) and those that prove themselves."""

    layout: str
    name: str
    files: Tree
    proven: list[str]


def file_example(layout: str, name: str, content: bytes) -> Example:
    return Example(layout, name, {"": content}, [""])


HF: Tree = {
    "trainer_state.json": b'{"epoch": 1.0, "global_step": 200}',
    "config.json": b'{"model_type": "x"}',
    "model-00001-of-00002.safetensors": safetensors(a=8),
    "model-00002-of-00002.safetensors": safetensors(b=8),
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {f"t{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}}
    ).encode(),
    "optimizer.pt": torch_file(),
    "training_args.bin": torch_file(),
    "merges.txt": b"",
}
SHARD = torch_file(dp_world_size=2, mp_world_size=1)
DEEPSPEED: Tree = {
    "mp_rank_00_model_states.pt": SHARD,
    "zero_pp_rank_0_mp_rank_00_optim_states.pt": torch_file(),
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt": torch_file(),
}
DCP: Tree = {
    ".metadata": dcp_metadata("__0_0.distcp", "__1_0.distcp"),
    "__0_0.distcp": b"weights",
    "__1_0.distcp": b"weights",
}
EXAMPLES = [
    file_example("torch", "step-200.pt", torch_file(step=200)),
    file_example("safetensors", "model-200.safetensors", safetensors(a=8, empty=0, b=5)),
    file_example("npz", "ckpt_200.npz", plain_zip()),
    file_example("zip", "epoch_200.keras", plain_zip(comment=b"by keras")),
    file_example("json", "step-200.json", b'{"step": 200, "w": [1.5, NaN], "deep": {"a": "]"}}'),
    file_example("json", "200.json", b"[1, 2, 3]"),
    file_example("lightning", "epoch=1-step=200.ckpt", torch_file(state_dict={})),
    Example("hf", "checkpoint-200", HF, [name for name in HF if name != "merges.txt"]),
    Example("deepspeed", "global_step200", {**DEEPSPEED, "../latest": b"global_step200"}, list(DEEPSPEED)),
    Example(
        "deepspeed",
        "step-200",
        {
            **{f"global_step200/{name}": data for name, data in DEEPSPEED.items()},
            "latest": b"global_step200\n",
        },
        [f"global_step200/{name}" for name in DEEPSPEED],
    ),
    Example(
        "hf",
        "checkpoint-200",
        {
            "trainer_state.json": HF["trainer_state.json"],
            "latest": b"global_step200",
            **{f"global_step200/{name}": data for name, data in DEEPSPEED.items()},
        },
        [f"global_step200/{name}" for name in DEEPSPEED],
    ),
    Example(
        "megatron",
        "iter_0000200",
        {"mp_rank_00/model_optim_rng.pt": torch_file(), "../latest_checkpointed_iteration.txt": b"200"},
        ["mp_rank_00/model_optim_rng.pt"],
    ),
    Example(
        "megatron",
        "iter_0000200",
        {**DCP, "common.pt": torch_file(), "../latest_checkpointed_iteration.txt": b"200"},
        [".metadata", "common.pt"],
    ),
    Example(
        "orbax",
        "200",
        {
            "_CHECKPOINT_METADATA": b'{"commit_timestamp_nsecs": 17}',
            "default/_METADATA": b'{"tree_metadata": {}}',
            "default/array_metadatas/process_0": b'{"array_metadatas": []}',
            "default/manifest.ocdbt": ocdbt(b"\x0c\xdb\x3a\x2a"),
            "default/d/0": ocdbt(b"\x0c\xdb\x20\xde"),
            "default/ocdbt.process_0/d/1": zstandard.compress(b"weights" * 9),
            "default/ocdbt.process_0/d/2": zstandard.ZstdCompressor(write_checksum=True).compress(
                b"\0" * 400_000
            ),
        },
        [
            "_CHECKPOINT_METADATA",
            "default/_METADATA",
            "default/array_metadatas/process_0",
            "default/manifest.ocdbt",
            "default/d/0",
            "default/ocdbt.process_0/d/1",
            "default/ocdbt.process_0/d/2",
        ],
    ),
    Example("dcp", "step-200", DCP, [".metadata"]),
    Example("lightning", "epoch=0-step=200.ckpt", {**DCP, "meta.pt": torch_file()}, [".metadata", "meta.pt"]),
    Example(
        "lightning",
        "epoch=0-step=200.ckpt",
        {**{f"checkpoint/{name}": data for name, data in DEEPSPEED.items()}, "latest": b"checkpoint"},
        [f"checkpoint/{name}" for name in DEEPSPEED],
    ),
    Example(
        "manifest",
        "step-200",
        {"model.raw": b"weights", "extra": b"", "manifest.json": manifest(**{"model.raw": 7})},
        ["model.raw", "manifest.json"],
    ),
    Example(
        "manifest",
        "step-200.raw",
        {"": b"weights", "../step-200.raw.manifest.json": manifest(**{"step-200.raw": 7})},
        ["", "../step-200.raw.manifest.json"],
    ),
]
IDS = [f"{example.layout}-{example.name}-{len(example.files)}" for example in EXAMPLES]


def write(root: Path, name: str, files: Tree) -> None:
    for relative, content in files.items():
        path = Path(os.path.normpath(root / name / relative)) if relative else root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def at_step(example: Example, step: int) -> Example:
    """The same checkpoint of another step."""

    def moved(content: bytes) -> bytes:
        is_text = b"\0" not in content and len(content) < 1000
        return content.replace(b"200", str(step).encode()) if is_text else content

    files = {name.replace("200", str(step)): moved(content) for name, content in example.files.items()}
    return example._replace(name=example.name.replace("200", str(step)), files=files)
