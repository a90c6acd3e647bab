"""What a traceback was reading, by its frames from the outermost on."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify.reading import reading_after

SITE = "/opt/venv/lib/python3.11/site-packages"
TORCH, PICKLE = (f"{SITE}/torch/serialization.py", "load"), ("/usr/lib/python3.11/pickle.py", "load")
MAIN, OWN = ("/app/train.py", "<module>"), ("/app/own/state.py", "parse")
FETCH = (f"{SITE}/torch/utils/data/_utils/fetch.py", "fetch")
MODULE = (f"{SITE}/torch/nn/modules/module.py", "load_state_dict")


def named(function: str) -> tuple[str, str]:
    return "/app/train.py", function


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        pytest.param([MAIN], "", id="nothing"),
        pytest.param([MAIN, TORCH], "file", id="a-library-reads"),
        pytest.param([MAIN, TORCH, PICKLE], "file", id="with-the-help-of-another"),
        pytest.param([MAIN, TORCH, (f"{SITE}/torch/_weights_only_unpickler.py", "load")], "file", id="or-of-its-own"),
        pytest.param([MAIN, TORCH, ("msgpack/_unpacker.pyx", "msgpack._cmsgpack.unpackb")], "file", id="in-cython"),
        pytest.param([MAIN, TORCH, OWN], "state", id="it-calls-a-class-of-the-user"),
        pytest.param([MAIN, (TORCH[0], "save")], "", id="it-writes"),
        pytest.param([MAIN, MODULE], "", id="what-was-read-is-put-into-a-model"),
        pytest.param([MAIN, named("load_checkpoint"), MODULE], "", id="by-whatever-function"),
        pytest.param([MAIN, (f"{SITE}/flax/serialization.py", "from_bytes")], "file", id="flax-reads"),
        pytest.param(
            [MAIN, (f"{SITE}/flax/serialization.py", "from_bytes"), (f"{SITE}/flax/serialization.py", "_restore_dict")],
            "",
            id="flax-fills",
        ),
        pytest.param([MAIN, FETCH, named("__getitem__"), TORCH], "sample", id="a-data-loader-fetches"),
        pytest.param([MAIN, FETCH, MODULE], "sample", id="whatever-comes-of-it"),
        pytest.param([MAIN, PICKLE], "state", id="a-file-of-any-kind"),
        pytest.param([MAIN, named("load_checkpoint")], "state", id="named-so"),
        pytest.param([MAIN, named("load_checkpoint"), OWN], "state", id="and-what-it-calls"),
        *(
            pytest.param([named(function)], "state", id=function)
            for function in (
                *("resume", "resume_from", "_restore", "maybe_restore", "loadcheckpoint", "restore_checkpoint"),
                *("load_ckpt", "_load_optimizer_and_scheduler", "_load_rng_state", "load_state", "load_model_weights"),
                *("read_snapshot", "load_pretrained", "_load_from_checkpoint", "load_training_state"),
            )
        ),
        *(
            pytest.param([named(function)], "", id=function)
            for function in ("load_data", "load_config", "download", "reload", "read_batch", "resumes", "load")
        ),
    ],
)  # fmt: skip
def test_what_is_read_in_the_innermost_frame(frames: list[tuple[str, str]], expected: str) -> None:
    reading = ""
    for file, function in frames:
        reading = reading_after(reading, file, function)
    assert reading == expected
