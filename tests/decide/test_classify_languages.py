"""What compilers, other languages than Python and codes of other fields print when they fail; what ends nothing."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import classify

HEAD = "Traceback (most recent call last):"
FRAME = ['  File "/app/fit.py", line 7, in <module>', "    fit()"]


def told(lines, exit_code=None):
    """Class, and number of the root line."""
    verdict = classify({"a.log": lines}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line


TEX = ["This is pdfTeX, Version 3.141592653 (preloaded format=pdflatex)", "entering extended mode"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                *TEX,
                "! LaTeX Error: Missing \\begin{document}.",
                *["[] \\OT1/cmr/m/n/10 words"] * 90,
                "! Emergency stop.",
                "!  ==> Fatal error occurred, no output PDF file produced!",
            ],
            ("compile", 3),
        ),
        (
            [
                "Collected error summary (may duplicate other messages):",
                "  pdflatex: Command for 'pdflatex' gave return code 1",
                "      Refer to 'output.log' and/or above output for details",
                "Latexmk: Undoing directory change",
            ],
            ("compile", 2),
        ),
        (
            [
                "main.f90:2:20:",
                "Error: Symbol 'sigma' at (1) has no IMPLICIT type",
                "main.f90:12:12:",
                "Warning: Obsolescent feature: Old-style character length at (1)",
            ],
            ("compile", 2),
        ),
        (
            [
                " " * 34 + "INPUT ERROR",
                "            UNRECOGNIZED OR DUPLICATED KEYWORD(S) IN SIMPLE INPUT LINE",
                "             PBT",
                "[file orca_main/main_input_keywordline.cpp, line 13872]: ",
            ],
            ("config", 2),
        ),
        (["cudaGetDeviceCount failed unknown error", "error: label not found."], ("crash", 1)),
        (
            ["inet_pton : src does not contain a character string representing a valid network address in the family"],
            ("config", 1),
        ),
        (
            [
                "I20231120 20:42:08.817317 3085567 server.cc:229] RPC receive encrypted seed.",
                "E20231120 20:42:28.814102 3085570 management.cc:163] Send encrypted seed to 127.0.0.1:5000 failed.",
                "E20231120 20:42:28.814361 3085508 server.cc:119] Task failed, Error: Send seed failed.",
            ],
            ("network", 2),
        ),
        (
            ["error[E0277]: the trait bound is not met", "   | ^^^", "error: could not compile `tl` due to 1 error"],
            ("compile", 1),
        ),
        (["Successfully built antlr4-python3-runtime", "Failed to build adam-atan2"], ("compile", 2)),
        (["[n431:20599] 11 more processes have sent help message help-mpi-api.txt / mpi-abort"], ("unknown", 1)),
        (["Error: Directory cannot be locked. Please make sure that no other process uses it."], ("config", 1)),
        ([HEAD, *FRAME, "Exception: not enough samples in fold 3"], ("data", 4)),
        (["==ERROR== './main' does not exist or is not an executable. Please specify its path."], ("config", 1)),
        ([HEAD, *FRAME, "ValueError: Can't read templates/alpaca.json"], ("config", 4)),
        (
            [
                "Error: unable to perform an operation on node 'rabbit@n1'. Please see diagnostics information below.",
                *["  * epmd reports: node 'rabbit' not running at all"] * 25,
            ],
            ("network", 1),
        ),
        (
            [*[f"step {n} loss 0.5" for n in range(9)], "run.sh: line 436: syntax error near unexpected token `('"],
            ("config", 10),
        ),
        (["/opt/run_update.sh:4: operation not permitted: /data/log"], ("config", 1)),
        (
            [
                "ERROR: LoadError: UndefVarError: Chen2022Type not defined",
                "Stacktrace:",
                *[f" [{n}] perform_step!(integrator::{'Type{' * 90})\n    @ Diff ~/a.jl:{n}" for n in range(9)],
                *[f"  [{n}] macro expansion" for n in range(12)],
                "in expression starting at /src/driver.jl:145",
            ],
            ("user_code", 1),
        ),
        (
            [
                "Tendency helper functions: Error During Test at /src/test/unit_test.jl:161",
                "  Got exception outside of a @test",
                "  MethodError: no method matching getindex(::ClimaCore.Fields.Field)",
                *["    Make rhs function                 |    1             1   0.0s"] * 40,
                "ERROR: Package KinematicDriver errored during testing",
            ],
            ("user_code", 3),
        ),
        (
            [
                "Fatal exception: class dr.Taxa cannot be cast to class dr.Parameter",
                "java.lang.ClassCastException: class dr.Taxa cannot be cast to class dr.Parameter",
                *["\tat dr.xml.XMLParser.convert(Unknown Source)"] * 9,
            ],
            ("user_code", 2),
        ),
        (
            [
                "thread 'main' panicked at library/core/src/iter/accum.rs:149:1:",
                "attempt to multiply with overflow",
                "stack backtrace:",
                *[f"  {n:2}:   0x10d19946e - std::sys::print\n{' ' * 30}at /rustc/a.rs:9:5" for n in range(30)],
                "thread caused non-unwinding panic. aborting.",
            ],
            ("user_code", 1),
        ),
        (
            ["Job 16186372 has exceeded memory allocation on node cpu-1", "a.SC: line 21: 3004 Killed    julia a.jl"],
            ("oom_host", 1),
        ),
        (["[main.cu:45] Unable to copy memory to device"], ("crash", 1)),
        (
            ["ERROR: The number of sequences is not enough (at least 3 needed).", *["-----", "Log saved", "done"] * 2],
            ("data", 1),
        ),
        (
            ["2025-07-20 20:01:47 - Eng - ERROR - 以下特征在基础特征文件中缺失"],
            ("config", 1),
        ),
    ],
    ids=[
        "tex", "latexmk", "gfortran", "orca", "cuda", "address", "glog", "rustc", "wheel", "mpi", "lock", "fold", "ncu",
        "template", "rabbitmq", "syntax", "zsh",
        "julia", "julia-test", "java", "rust", "pbs", "copy", "few", "chinese",
    ],
)  # fmt: skip
def test_compilers_and_codes_of_other_fields(lines, expected):
    """Of GitHub: jravert88/Thesis, 7977Brahma/RUL_Report, BMLEMMA/DFT-study-of-Nitrobenzene, Barry-ljf/TEE-SMCC,
    ConnorMallon/GadiScratch, JunSuzukiJapan/tl, JerMa88/bert-trm, nidhimagrover/6679_project_GPU,
    BoNing-Gu/ADIA-Lab-Structural-Break, LanluYuu/CUDA_GEMM, xiuzbl/ContinualLLM, bzha0/aiida_tmm,
    nightbreezerises/Finedefics, CliMA/KinematicDriver.jl, suchard-group/EBOVPhyloHawkes.
    """
    assert told(lines) == expected


def test_snakemake_finishes_its_jobs_before_it_gives_up():
    """https://github.com/snakemake/snakemake"""
    job = ["[Thu Jun 30 10:35:13 2022]", "Finished job 165.", "89 of 182 steps (49%) done"]
    assert told([*job, "Will exit after finishing currently running jobs.", *job * 20]) == ("unknown", 4)
    assert told(job * 20)[0] == "none"


@pytest.mark.parametrize(
    "lines",
    [
        ["[Eval] Analyzing errors...", "[Eval] Error cases saved to: results/error_cases.csv"],
        ["513:M 19 Feb 18:30:33.215 * Background saving terminated with success"],
        [
            "2024-12-12T11:26:15.299Z ERROR [acss::init] R_x filled poly: [BigInt { sign: Plus }]",
            "2024-12-12T11:26:15.299Z INFO  [acss::init] Share verification successful!",
        ],
        ["Test Error: ", " Accuracy: 69.1%, Avg loss: 0.699532 ", "", "Done!"],
        ["[W 11:44:06.383 NotebookApp] 404 GET /notebooks/a.ipynb (10.0.0.1): No such file or directory: a.ipynb"],
        [f"2025-05-29 17:08:{n} - utils - ERROR - Failed to visualize: unsupported" for n in range(10, 30)],
        ["cc -o cmTC_1ab2c a.o", "gmake[1]: *** [cmTC_1ab2c] Error 1", "gmake: *** [cmTC_1ab2c/fast] Error 2"],
    ],
    ids=["saved", "redis", "rust", "tutorial", "notebook", "items", "cmake"],
)  # fmt: skip
def test_words_of_an_end_that_report_none(lines):
    """Of GitHub: vihaannnn/prompt-injections, ASSERT-KTH/slumps, akhilsb/acss-rs, LyricZhao/SW-Gromacs,
    knawel/Protein_surface, flowers2023/lm-LSTM, LautaroCavichia/zero-shot-vehicle-classification.
    """
    assert told(lines)[0] == "none"


def test_a_warning_of_a_lost_connection_ends_nothing_by_itself():
    """https://github.com/sochsenreither/grandline"""
    lost = (
        "[2023-12-01T17:55:40.865Z WARN ] Failed to send message to 10.0.0.7:9008: Broken pipe (os error 32)"
    )
    assert told(["[2023-12-01T17:55:40.855Z INFO ] Epoch 2214", lost])[0] == "none"
    assert told([lost], exit_code=1) == ("network", 1)


def test_the_first_error_of_a_compiler_is_the_root():
    """https://github.com/jpsferreira/UMAT-ABAQUS"""
    lines = [f"Error: Symbol 's{n}' at (1) has no IMPLICIT type" for n in range(300)]
    assert told(lines) == ("compile", 1)
    assert told(lines, exit_code=1) == ("compile", 1)


def test_an_exception_that_a_logger_prints_has_been_caught():
    """https://github.com/ruud-korsten/Thesis"""
    failed = "2025-06-20 14:29:17,559 - ERROR - Failed run: health | rows=10000"
    raised = [HEAD, *FRAME, "NameError: name 'result_df' is not defined"]
    later = [f"2025-06-20 14:29:{n},062 - INFO - Run time: 1.46 seconds" for n in range(20, 55)]
    assert told([failed, *raised, *later])[0] == "none"
    assert told([failed.replace("Failed run", "Uncaught"), *raised, *later])[0] == "user_code"
    assert told([failed, *raised, later[0]]) == ("user_code", 5)


def test_java_says_that_it_had_no_memory_and_lists_its_handlers():
    """A file `hs_err_pid*.log`; source of the form: Oracle's guide to troubleshooting."""
    handlers = (
        "SIGSEGV: [libjvm.so+0xacfe70], sa_mask[0]=11111111011111111101111111111110, sa_flags=SA_RESTART"
    )
    head = ["#", "# There is insufficient memory for the Java Runtime Environment to continue."]
    crash = [
        "# A fatal error has been detected by the Java Runtime Environment:",
        "#  SIGSEGV (0xb) at pc=0x7f, pid=12",
    ]
    details = ["VM state:not at safepoint", "Signal Handlers:", handlers]
    assert told([*head, *details]) == ("oom_host", 2)
    assert told([*crash, *details]) == ("crash", 2)
    assert told(["#", *details])[0] == "none"


@pytest.mark.parametrize(
    "exception",
    [
        "KeyError: \"Unable to open object (object 'positions' doesn't exist)\"",
        "KeyError: \"Unable to synchronously open object (object 'x' doesn't exist)\"",
        "ValueError: Couldn't read enough bytes for MRC header",
    ],
)
def test_a_file_of_data_without_what_is_read_from_it(exception):
    assert told([HEAD, *FRAME, exception]) == ("data", 4)
