"""What programs around a training, and other languages, print of ends and of what they got over, in their formats."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import classify

PROGRESS = [f"step {number} loss 0.{number}" for number in range(1, 6)]
HEAD = "Traceback (most recent call last):"
FRAME = ['  File "/app/fit.py", line 7, in <module>', "    fit()"]


def told(lines, exit_code=None):
    """Class, and number of the root line."""
    verdict = classify({"a.log": lines}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("##[error]The operation was canceled.", "cancelled"),
        ("##[error]The runner has received a shutdown signal. This can happen when …", "preempted"),
        ("timeout: sending signal TERM to command 'python'", "cancelled"),
        ("\t diagnostics: Application application_17_0001 was killed by user alice at 10.0.0.1", "cancelled"),
        ("nbclient.exceptions.CellTimeoutError: A cell timed out while it was being executed.", "cancelled"),
    ],
)
def test_what_ends_a_program_from_outside_says_so(line, expected):
    assert told([*PROGRESS, line]) == (expected, 6)


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("30 fits failed with the following error:", "  warnings.warn(some_fits_failed_message)"),
        (
            "UserWarning: Scoring failed. The score on this train-test partition will be nan. Details: ",
            "  warnings.warn(",
        ),
    ],
)
def test_the_traceback_within_a_warning_of_scikit_learn_ended_nothing(above, below):
    lines = [above, HEAD, *FRAME, "ValueError: Solver lbfgs supports only 'l2' penalties", "", below]
    assert told([*PROGRESS, *lines])[0] == "none"
    assert told([*PROGRESS, *lines[1:5]])[0] == "user_code"


@pytest.mark.parametrize(
    ("message", "failure_class"),
    [
        ("The dof pos at index 6 is invalid: [0.0, 0.0], it should be a normalized quaternion", "user_code"),
        ("called Result::unwrap() on an Err value: Os { code: 28, kind: StorageFull }", "storage"),
    ],
)
def test_a_panic_that_python_raises_is_of_the_class_of_its_words(message, failure_class):
    """https://github.com/PyO3/pyo3/blob/main/src/panic.rs"""
    panicked = "thread '<unnamed>' panicked at src/data.rs:236:17:"
    lines = [*PROGRESS, panicked, HEAD, *FRAME, f"pyo3_runtime.PanicException: {message}"]
    assert told(lines)[0] == failure_class
    assert told(lines[:6])[0] == "crash"


def test_a_connection_that_a_library_tries_again_is_no_failure():
    lines = [
        "'(ReadTimeoutError(\"Read timed out.\"))' thrown while requesting HEAD https://huggingface.co/gpt2",
        "Retrying in 1s [Retry 1/5].",
    ]
    assert told(lines)[0] == "none"
    assert told([*lines, HEAD, *FRAME, "requests.exceptions.ReadTimeout: timed out"])[0] == "network"


def test_condor_reports_a_job_that_it_has_found_again():
    """https://htcondor.readthedocs.io/en/latest/codes-other-values/job-event-log-codes.html"""
    lost = ["022 (7.000.000) 2026-01-01 11:01:00 Job disconnected, attempting to reconnect", "..."]
    failed = ["024 (7.000.000) 2026-01-01 11:02:00 Job reconnection failed", "..."]
    found = ["023 (7.000.000) 2026-01-01 11:02:00 Job reconnected to slot1@node", "..."]
    assert told([*lost, *failed]) == ("hardware", 3)
    assert told([*lost, *found])[0] == "none"


def test_a_detector_that_finds_nothing_yet_has_no_empty_data_set():
    lines = ["mmdet - ERROR - The testing results of the whole dataset is empty.", "Epoch(val) [1][500]"]
    assert told([*PROGRESS, *lines])[0] == "none"
    assert told([*PROGRESS, "ERROR: the validation dataset is empty"])[0] == "data"


@pytest.mark.parametrize(
    ("panic", "expected"),
    [
        (["thread 'main' panicked at src/main.rs:10:5:", "index out of bounds: the len is 3"], "user_code"),
        (
            ["thread 'main' panicked at 'called `unwrap()` on `Err`: Os { kind: NotFound }', main.rs:12:40"],
            "config",
        ),
        (["thread '<unnamed>' panicked at src/lib.rs:88:14:", "a library's own"], "crash"),
    ],
)
def test_a_rust_program_that_panics_fails_by_its_own_error(panic, expected):
    note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"
    assert told([*PROGRESS, *panic, note]) == (expected, 6)


@pytest.mark.parametrize(
    ("stopped", "reason", "expected"),
    [
        ("Error in readRDS(file = f) : ", "  cannot open the connection", ("config", 3)),
        ("Error in h5read(f, name) : ", "  unable to open file: No such file or directory", ("config", 3)),
        ("Error in read.table(file = file) : ", "  no lines available in input", ("user_code", 3)),
    ],
)
def test_r_gives_the_reason_in_the_next_line(stopped, reason, expected):
    assert told(["Loading", stopped, reason, "Execution halted"]) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Erreur dans if (x > y) { : valeur manquante là où TRUE / FALSE est requis", "user_code"),
        ("Fehler in solve.default(a) : Lapack-Routine dgesv: System ist genau singulär", "user_code"),
        ("Error: unexpected symbol in:", "user_code"),
        ("forrtl: severe (124): Invalid command supplied to EXECUTE_COMMAND_LINE", "user_code"),
        ("ERROR (EidosSymbolTable::_GetValue_RAW): undefined identifier indvidual.", "user_code"),
        ("SyntaxError in line 49 of /data/snakefile:", "user_code"),
        ("WildcardError in line 45 of /data/snakefile:", "config"),
        ("Exiting because a job execution failed. Look above for error message", "unknown"),
        ("Can not open file:", "config"),
        ("subprocess.CalledProcessError: Command 'x' returned non-zero exit status 127.", "config"),
        ("scons: *** Do not know how to make File target `install' (/src/install).  Stop.", "config"),
        ("scons: Build interrupted.", "cancelled"),
        ("Terminating processes on user request, this might take some time.", "cancelled"),
        ("2026-01-05 18:49:57,550 [runner] [INFO ]  Exit code: 127", "config"),
        ("nvmlInit_v2() failed: Driver/library version mismatch", "config"),
        ("\tError from slot1@n1: Your job used too much memory, as measured by ImageSize.", "oom_host"),
        ("RuntimeError: [enforce fail at inline_container.cc:222] . file not found: archive/7", "checkpoint"),
        ("RuntimeError: The archive devkit_t12.tar.gz is not present in the root directory", "config"),
        ("qt.qpa.screen: QXcbConnection: Could not connect to display localhost:10.0", "config"),
        ("Could not connect to any X display.", "config"),
        ("err: 402 Client Error: Payment Required for url: https://openrouter.ai/api/v1/chat", "network"),
        ("err: 404 Client Error: Not Found for url: https://openrouter.ai/api/v1/chat", "config"),
        (
            "[ERROR] Aggregator WS exhausted all retries! Connection failed: timed out. Reconnecting in 1s",
            "none",
        ),
        (
            "RuntimeError: Input and output sizes should be greater than 0, but got input (H: 32, W: 0)",
            "user_code",
        ),
    ],
)
def test_what_other_programs_say_of_their_ends(line, expected):
    """https://github.com/caillebotteAntoine/SAEM4JLS, https://github.com/danielturek/scr_ergon, https://github.com/jhoanlond/QCXMS2,
    https://github.com/SchriderLab/CancerSim, https://github.com/CraigJAnderson/lce-si-replication,
    https://github.com/quytruong1808/vilas, https://github.com/jsquaredosquared/novocraft-sv-benchmarking,
    https://github.com/rwalkerlewis/pwdfd2D, https://github.com/logangregorym/gem5-changes, https://github.com/ThadlerK/OneDock,
    https://github.com/FalsoMoralista/FGDCC, https://github.com/jantoniadis/MESAcondor, https://github.com/FionaLippert/birdMigration,
    https://github.com/MohitK29/compact-Transformers, https://github.com/BellaCaoyh/pytorch_cnn
    """
    assert told([*PROGRESS, line])[0] == expected


@pytest.mark.parametrize(
    "frames",
    [
        [f" [{number}] at_work(x::Float64)" for number in range(1, 9)] * 2,
        ["   @ Main /data/a.jl:47"] * 14,
        ["qcxms2             00000000004931AA  tsmod_mp_prepneb_        1121  tsmod.f90"] * 14,
    ],
)
def test_frames_of_julia_and_fortran_are_not_what_a_program_prints_after_an_error(frames):
    """https://github.com/Atomtomate/LadderDGA_utils, https://github.com/jhoanlond/QCXMS2"""
    assert told([*PROGRESS, "ERROR: LoadError: KeyError: key not found", *frames])[0] == "user_code"


COMPILER = "src/a.cc:12:3: error: no match for 'operator[]'"


@pytest.mark.parametrize(
    "line",
    [
        COMPILER,
        "lib/mpi_type.h(13): error: expression must have a constant value",
        '"a.c", line 7: catastrophic error: cannot open source file "netcdf_par.h"',
        "fatbinary fatal   : Unknown option '-image3'",
        "NVFORTRAN-S-0038-Symbol, x, has not been explicitly declared (a.f90)",
    ],
)
def test_what_does_not_compile_explains_what_make_and_the_script_say_then(line):
    """https://github.com/HPQC-LABS/QCBugs, https://github.com/casperking666/advanced-hpc-lbm, https://github.com/NTHU-SC/ISC25-ICON-C"""
    notes = [f"a.h:{number}:1: note: candidate" for number in range(12)]
    ends = ["make: *** [Makefile:64: a.o] Error 2", "job.sh: line 13: ./a: No such file or directory"]
    assert told([line, *notes, *ends]) == ("compile", 1)


STEP_ENDS = "slurmstepd-n0: error: *** STEP 1.0 ON n0 CANCELLED AT 2026-11-27T12:27:51 ***"
STEP_ABORTED = "srun: Job step aborted: Waiting up to 7 seconds for job step to finish."


@pytest.mark.parametrize("how", ["Exited with exit code 7", "Killed"])
def test_slurm_ends_the_step_of_a_task_that_failed(how):
    """What Slurm 22.05 prints with --kill-on-bad-exit; https://github.com/cqhcolorado/test-case-cori-gpu-acc"""
    lines = [
        f"srun: error: n1: task 1: {how}",
        "srun: launch/slurm: _step_signal: Terminating StepId=1.0",
        STEP_ENDS,
        "srun: error: n0: task 0: Terminated",
        "srun: Force Terminated StepId=1.0",
    ]
    assert told([*PROGRESS, *lines]) == ("unknown", 6)
    assert told([*lines[:2], *["words of the next step"] * 40, STEP_ENDS])[0] == "cancelled"


@pytest.mark.parametrize("lines", [[STEP_ENDS, STEP_ABORTED], [STEP_ABORTED, STEP_ENDS]])
def test_a_step_that_somebody_ended_did_not_fail(lines):
    """What Slurm 22.05 prints at `scancel 1.0`; the two first lines may change places."""
    killed = [f"srun: error: n{number}: task {number}: Killed" for number in (0, 1)]
    assert told([*PROGRESS, *lines, *killed])[0] == "cancelled"


def test_a_job_that_another_one_follows_explains_nothing_of_it():
    limit = "slurmstepd: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT ***"
    last = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-01T11:00:00 ***"
    assert told([limit, *PROGRESS, last]) == ("cancelled", 7)


def test_a_job_that_is_removed_was_not_preempted():
    """https://github.com/farr/PISNLineCosmography"""
    evicted = "004 (7.000.000) 06/17 19:28:56 Job was evicted."
    removed = "009 (7.000.000) 06/17 19:28:56 Job was aborted by the user."
    assert told([evicted, "...", removed]) == ("cancelled", 3)
    assert told([evicted, "..."])[0] == "preempted"


def test_what_a_job_could_not_start_is_not_what_another_program_died_of():
    """https://github.com/UrbsLab/survival-LCS"""
    lines = ["slurmstepd: error: execve(): run.sh: Permission denied", HEAD, *FRAME, "KeyError: 'a'"]
    assert told(lines) == ("user_code", 5)


def test_mpirun_s_advice_is_no_output_of_a_program():
    """https://github.com/DSMishler/python-data-collector"""
    slots = "There are not enough slots available in the system to satisfy the 41"
    assert told([slots, *["  how slots are counted"] * 20]) == ("config", 1)


def test_lsf_says_where_the_other_stream_is_after_its_report():
    """https://github.com/CraigJAnderson/lce-si-replication"""
    report = [
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        "Exited with exit code 143.",
    ]
    end = [
        "The output (if any) is above this job summary.",
        "PS:",
        "Read file <e.err> for stderr output of this job.",
    ]
    assert told([*report, *end]) == ("oom_host", 1)


def test_a_message_of_many_lines_does_not_show_that_a_program_went_on():
    """https://github.com/jiach/DASPairedSimulation"""
    bad = [f"    Line #{number} (got 6 columns instead of 7)" for number in range(700)]
    raised = [HEAD, *FRAME, "ValueError: Some errors were detected !"]
    assert told([*raised, *bad]) == ("data", 4)
    assert told([*raised, *(line.strip() for line in bad)])[0] == "none"


def test_a_program_s_exception_that_another_one_prints_ended_nothing():
    """https://github.com/vnagpal25/gen-cov-abm"""
    lines = ["STDERR:", HEAD, *FRAME, "Exception: Directory not found", "", "[OK] RMSE=189.9", "Saved"]
    assert told([*lines, "words", "more"])[0] == "none"
    assert told([*lines, "words", "more"], 1)[0] == "config"
    by_module = ['  File "/usr/lib/python3.10/runpy.py", line 86, in _run_code', "    exec(code)"]
    assert told([*lines[:2], *by_module, *lines[2:], "words", "more"])[0] == "none"
    assert told([*lines[1:], "words", "more"])[0] == "config"


def test_items_that_fail_twice_each_are_items():
    """https://github.com/estevesjh/ccopa"""
    item = ["Error: no group members/{0}", "Error: no group clusters/{0}", "writing {0}"]
    lines = [line.format(number) for number in range(9) for line in item]
    assert told([*lines, "Total time: 411 s"])[0] == "none"


def test_a_run_that_ends_itself_in_time_is_not_cancelled():
    """https://github.com/openai/parameter-golf"""
    line = "Wallclock limit reached (590s), will stop after this step"
    assert told([*PROGRESS, line, "Training complete in 590s", "BPB: 1.01"])[0] == "none"


def test_a_tracker_s_last_words_are_no_other_program():
    """https://github.com/Wchoi189/upstageailab-ocr-recsys-competition-ocr-2"""
    lines = [HEAD, '  File "/app/t.py", line 7, in train', "    fit()", "ImportError: cannot import name 'x'"]
    wandb = ["wandb:", "wandb: View run a", "wandb: Find logs at b", "wandb: c", "wandb: d"]
    told_by_hydra = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
    assert told([*PROGRESS, *lines, told_by_hydra, *wandb])[0] == "config"


@pytest.mark.parametrize(
    "line",
    [
        "Job 2157 exited with exit code 0.",
        "[N8_peak]:   Standard error: /scratch/abinit/out.err",
        "exiting",
        "Info: /OSCI/SystemC: Simulation stopped by user.",
        "Failed paths: [PosixPath('a.ipynb'), PosixPath('b.ipynb')]",
        "Failed files: ['a.csv']",
    ],
)
def test_what_sounds_like_a_failure_and_is_none(line):
    """https://github.com/jsquaredosquared/novocraft-sv-benchmarking, https://github.com/CRW405/REU-HPC-Research,
    https://github.com/logangregorym/gem5-changes
    """
    assert told([*PROGRESS, line])[0] == "none"


def test_matlab_s_links_do_not_hide_its_errors():
    """https://github.com/levincoolxyz/invspec"""
    link = '<a href="matlab:helpUtils.errorDocCallback(\'textscan\')" style="font-weight:bold">textscan</a>'
    lines = [f"{{Error using {link}", "Invalid file identifier.", f"Error in {link}", "  x} ", "test_script"]
    assert told([*PROGRESS, *lines]) == ("user_code", 6)


def test_an_exit_code_that_a_script_states_counts_above_its_farewell():
    """https://github.com/debnathk/drug-synergy"""
    lines = ["Experiment failed with return code: 1", "All outputs saved to: /x", "=====", "Job ended on Tue"]
    assert told([*PROGRESS, *lines]) == ("unknown", 6)
    assert told([*PROGRESS, *lines, *["words of another program"] * 5])[0] == "none"


@pytest.mark.parametrize(
    "message",
    [
        "Input and output must have the same number of spatial dimensions, but got input",
        "expand(torch.cuda.FloatTensor{[1280]}, size=[]): the number of sizes provided (0) must be greater",
    ],
)
def test_what_is_said_of_dimensions_is_the_program_s_own(message):
    """https://github.com/YoEv/Denoiser, https://github.com/FalsoMoralista/FGDCC"""
    assert told([*PROGRESS, HEAD, *FRAME, f"ValueError: {message}"]) == ("user_code", 9)


def test_condor_cannot_send_a_file_of_the_job():
    """https://github.com/carlos-a-enriquez/bdp1_condor"""
    error = "SHADOW at 10.0.0.1 failed to send file(s) to <10.0.0.1:6345>: error reading from /a/bwa: (errno 2) No"
    lines = [
        "007 (036.000.000) 07/05 14:50:05 Shadow exception!",
        f"\tError from slot1@n1: {error} such file",
    ]
    assert told([*lines, "...", "012 (036.000.000) 07/05 14:50:05 Job was held."]) == ("config", 2)


def test_a_thread_of_the_program_that_dies_shortly_before_its_end_ended_it():
    """https://github.com/Tar-ive/tpu"""
    frames = ['  File "/usr/lib/python3.10/threading.py", line 1016, in _bootstrap_inner', "    self.run()"]
    raised = ["Exception in thread Thread-1:", HEAD, *frames, *FRAME[:1], "    x[0]", "KeyError: 0"]
    ends = [f"{word} the components" for word in ("Starting", "Counting", "Stopping", "Timing", "Closing")]
    assert told([*raised, *ends]) == ("user_code", 7)
    assert told([*raised, *ends, *(f"{end} again" for end in ends), "and more"])[0] == "none"


@pytest.mark.parametrize(
    "line",
    [
        "error: Unrecognized arguments: --stepz 5",
        "train.py: error: Unrecognized arguments: --stepz 5",
        'error: Parser key "n":',
        "error: Parser key \"config\": File does not exist: '/data/run.yaml'",
        'error: Key "opt" is required but not included in config object or its value is None.',
        'error: Validation failed: Key "opt" is required but not included in config object or its value is None.',
        "error: Validation failed: Key 'bogus' is not expected",
        "error: Validation failed: Subcommand 'fit' does not accept nested key 'lr'",
        "error: Validation failed: Group 'trainer' does not accept nested key 'lr'",
        """error: 'Configuration check failed :: No action for destination key "lr" to check its value.'""",
        "error: Problems parsing config: while parsing a flow node",
        'error: expected "subcommand" to be one of {fit,test}, but it was not provided.',
        "error: argument subcommand: invalid choice: 'fitt' (choose from 'fit', 'test')",
        "error: argument --mode: expected one argument",
    ],
)
def test_what_jsonargparse_refuses_is_a_wrong_setup_without_doubt(line):
    verdict = classify({"a.log": ["usage: train.py [-h] [--steps STEPS]", line]}, exit_code=2)
    assert (verdict.failure_class, verdict.recoverable, verdict.confidence) == ("config", False, "high")
    assert (verdict.evidence.rule, verdict.evidence.line) == ("cfg-jsonargparse", 2)


def test_what_a_type_of_argparse_refuses_is_a_wrong_setup_without_doubt():
    line = "train_bash.py: error: argument --fp16: Truthy value expected: got s but expected one of yes/no"
    verdict = classify(
        {"a.log": [f"2026-01-02T03:04:05Z {text}" for text in ("usage: train_bash.py [-h]", line)]}
    )
    assert (verdict.failure_class, verdict.confidence) == ("config", "high")


@pytest.mark.parametrize(
    "line",
    ["error: argument never used: x", "error: Validation failed: accuracy 0.1", "error: Key 'x' is expired"],
)
def test_what_others_say_after_error_is_not_jsonargparses(line):
    verdict = classify({"a.log": [line]}, exit_code=2)
    assert verdict.evidence.rule != "cfg-jsonargparse"


@pytest.mark.parametrize(
    "message",
    [
        "AF_UNIX path too long",
        "validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /tmp/a/tmp/ray/sockets/x",
    ],
)
def test_a_socket_that_lies_too_deep_is_a_wrong_setup(message):
    verdict = classify({"a.log": [HEAD, *FRAME, f"OSError: {message}"]}, exit_code=1)
    assert (verdict.failure_class, verdict.recoverable, verdict.confidence) == ("config", False, "high")
    assert "RAY_TMPDIR" in verdict.evidence.hint
