"""What workflows, notebook servers, shells and codes of chemistry print when they end, and what ended nothing."""

from __future__ import annotations

import pytest

from prefect_ft.decide.classify import classify

HEAD = "Traceback (most recent call last):"
FRAME = ['  File "/app/fit.py", line 7, in <module>', "    fit()"]


def told(lines, exit_code=None):
    """Class, and number of the root line."""
    verdict = classify({"a.log": lines}, exit_code=exit_code)
    return verdict.failure_class, verdict.evidence and verdict.evidence.line


# -- Nextflow -----------------------------------------------------------------------------------------


def logged(level, logger, message, thread="main"):
    return f"Feb-19 10:58:50.604 [{thread}] {level.ljust(5)} {logger} - {message}"


def failed_task(*output, code=1):
    """A task that has failed, as in `.nextflow.log` (TaskProcessor.groovy, Session.groovy)."""
    cause = f"Process `align (1)` terminated with an error exit status ({code})"
    stats = (
        "Workflow completed > WorkflowStats[succeededCount=0; failedCount=1; ignoredCount=0; cachedCount=0; "
        "pendingCount=0; submittedCount=0; runningCount=0; retriesCount=0; abortedCount=0;"
    )
    return [
        logged("DEBUG", "nextflow.cli.Launcher", "$> nextflow run main.nf"),
        logged(
            "DEBUG", "nextflow.Session", "Script base path does not exist or is not a directory: /data/bin"
        ),
        logged(
            "ERROR",
            "nextflow.processor.TaskProcessor",
            "Error executing process > 'align (1)'",
            "Task monitor",
        ),
        "",
        "Caused by:",
        f"  {cause}",
        "",
        "Command executed:",
        "",
        "  align --in a.fq || echo failed",
        "",
        "Command exit status:",
        f"  {code}",
        "",
        "Command output:",
        "  (empty)",
        "",
        "Command error:",
        *(f"  {line}" for line in output),
        "",
        "Work dir:",
        "  /data/work/95/6b83c0",
        "",
        "Tip: view the complete command output by changing to the process work dir",
        logged("DEBUG", "nextflow.Session", f"Session aborted -- Cause: {cause}", "Task monitor"),
        logged("DEBUG", "nextflow.Session", "Session await > all barriers passed"),
        logged("DEBUG", "n.trace.WorkflowStatsObserver", stats),
        logged("DEBUG", "nextflow.script.ScriptRunner", "> Execution complete -- Goodbye"),
    ]


def test_what_nextflow_s_task_printed_says_why_it_failed():
    """https://github.com/ChelseaCHENX/Chromotin-Dynamics, https://github.com/AMR-Hackathon-2021/benchmarking_datasets"""
    error = "mktemp: failed to create directory via template 'null/tmp.XXX': No such file or directory"
    assert told(failed_task("reading a.fq", error)) == ("config", 20)
    assert told(failed_task("reading a.fq"))[0] == "unknown"


def test_a_syntax_error_in_what_a_task_printed_is_read_within_its_margin():
    """https://github.com/Aeyocca/reads2pav"""
    lines = [
        '  File "/bin/calc.py", line 83',
        "    if x[0] >= 1",
        "              ^",
        "SyntaxError: invalid syntax",
    ]
    assert told(failed_task(*lines)) == ("user_code", 22)


def test_a_workflow_that_goes_on_after_a_failed_task_has_failed_all_the_same():
    """https://github.com/Alexggo/transcriptomics, https://github.com/MASILab/nf-neuro-fitbir"""
    submitted = [
        logged("INFO", "nextflow.Session", f"[a{n}] Submitted process > b ({n})") for n in range(150)
    ]
    lines = failed_task("reading a.fq")
    assert told([*lines[:-4], *submitted, *lines[-4:]])[0] == "unknown"
    assert told([*lines[:-4], *submitted, *lines[-2:]])[0] == "unknown"
    assert told([*lines[:-4], *submitted, lines[-1]])[0] == "none"
    for count, well in (("failedCount=1", "failedCount=0"), ("retriesCount=0", "retriesCount=1")):
        assert told([*submitted, *(line.replace(count, well) for line in lines[-2:])])[0] == "none"


@pytest.mark.parametrize(("signal", "expected"), [("SIGINT", "cancelled"), ("SIGTERM", "preempted")])
def test_nextflow_says_which_signal_ended_it(signal, expected):
    """https://github.com/AMR-Hackathon-2021/benchmarking_datasets"""
    ends = [
        logged("DEBUG", "nextflow.Session", f"Session aborted -- Cause: {signal}", f"{signal} handler"),
        logged("WARN", "n.processor.TaskPollingMonitor", "Killing running tasks (5)"),
        logged("DEBUG", "nextflow.script.ScriptRunner", "> Execution complete -- Goodbye"),
    ]
    assert told([logged("INFO", "nextflow.Session", "[a1] Submitted process > b"), *ends]) == (expected, 2)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Unable to parse config file: '/data/nextflow.config'", "config"),
        ("Script compilation error", "user_code"),
        ("Process `A:B` declares 2 input channels but 1 were specified", "user_code"),
        ("@unknown", "unknown"),
    ],
)
def test_what_keeps_nextflow_from_starting_is_above_a_stack_of_java(message, expected):
    """https://github.com/Ackia/e_hirae_analysis, https://github.com/AlbertRockG/amrnanopro"""
    stack = [f"\tat org.codehaus.groovy.Errors.fail{n}(Errors.java:{n})" for n in range(70)]
    lines = [logged("DEBUG", "nextflow.cli.Launcher", "$> nextflow run main.nf")]
    assert told([*lines, logged("ERROR", "nextflow.cli.Launcher", message), *stack]) == (expected, 2)


@pytest.mark.parametrize(
    "message",
    [
        "Cannot find revision `dev` -- Make sure that it exists in the remote repository",
        "Cannot find the specified project in the local repository",
        "No files match pattern `*.fq` at path: /data/reads/",
        "Unable to acquire lock on session with ID 0c1b-42",
        "Process requirement exceeds available CPUs -- req: 16; avail: 8",
        "Cannot find script file: /data/main.nf",
        "Can't open input directory",
        "Project `nf-core/rnaseq` not found",
        "Error opening /data/a.pdb",
        "Error opening file '/data/a.pdb'",
    ],
)
def test_what_the_user_gave_that_is_not_there(message):
    """https://github.com/nextflow-io/nextflow, https://github.com/AdrienG9/project-nextflow,
    https://github.com/atfrank/RNACavityMiner"""
    assert told([HEAD, *FRAME, f"RuntimeError: {message}"]) == ("config", 4)


# -- shells, exit codes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "/var/spool/slurmd/job52/slurm_script: 8: .: Can't open /var/spool/slurmd/job52/project_home",
        "/bin/sh: 0: cannot open train.sh: No such file",
    ],
)
def test_a_shell_that_cannot_read_a_file_of_its_script(line):
    """https://github.com/anvart/stormwatch"""
    assert told([line]) == ("config", 1)


REPORT = ["At line:1 char:1", "+ accelerate config", "+ ~~~~~~~~~~"]
ORIGIN = ["    + CategoryInfo          : {} [], {}", "    + FullyQualifiedErrorId : {}", " "]
NO_COMMAND = (
    "accelerate : The term 'accelerate' is not recognized as the name of a cmdlet, function, script file"
)
NO_SEPARATOR = "The token '&&' is not a valid statement separator in this version."


def powershell(kind, exception, error):
    return [line.format(*each) for line, each in zip(ORIGIN, [(kind, exception), (error,), ()], strict=True)]


def test_windows_has_no_such_command():
    """https://github.com/bmaltais/kohya_ss/issues/2424 https://github.com/bitsandbytes-foundation/bitsandbytes/issues/195"""
    cmd = [
        "'launch' is not recognized as an internal or external command,",
        "operable program or batch file.",
    ]
    settings = [
        "23:09:10-006672 INFO     Max train steps: 1600",
        "23:09:10-010671 INFO     lr_warmup_steps = 0",
    ]
    assert told([*settings, *cmd, "23:09:10-379596 INFO     Training has ended."]) == ("config", 3)
    origin = powershell(
        "ObjectNotFound: (accelerate:String)", "CommandNotFoundException", "CommandNotFoundException"
    )
    assert told([NO_COMMAND, *REPORT, *origin]) == ("config", 1)
    assert told([NO_COMMAND, *REPORT, *origin, "done"]) == ("config", 1)
    assert told([NO_COMMAND, *REPORT, *origin, *(f"{name} ready" for name in "abcd")]) == ("none", None)
    assert told([cmd[0].replace("launch", "git"), cmd[1], "Accuracy 0.93"]) == ("none", None)
    missing = "train.sh: line 4: fetch: command not found"
    assert told([missing, *(f"+ prepare {name}" for name in "abcd")]) == ("none", None)


def test_a_script_that_powershell_cannot_read():
    """https://github.com/shopgoodwill-sniper/shopgoodwill-auction-sniper/issues/83
    https://github.com/JulianHayward/Azure-MG-Sub-Governance-Reporting/issues/37"""
    origin = powershell("ParserError: (:)", "ParentContainsErrorRecordException", "InvalidEndOfLine")
    assert told([*REPORT, NO_SEPARATOR, *origin]) == ("config", 4)
    assert told([*REPORT, "Argument in der Parameterliste fehlt.", *origin]) == ("config", 5)
    bars = [
        "Line |",
        " 216 |  foreach ($x in 1..3 {",
        "     |                     ~",
        "     | It is reserved.",
    ]
    assert told(["ParserError: /home/user/train.ps1:216", *bars]) == ("config", 1)
    assert told(["ParserError: /home/user/train.ps1:216", *bars, "done"]) == ("config", 1)
    for message in (
        "Unexpected token 'useful' in expression or statement.",
        'The string is missing the terminator: ".',
    ):
        assert told([*REPORT, message, *origin]) == ("config", 4)


def test_a_script_with_an_error_that_comes_after_a_killed_program():
    """https://github.com/CoolJosh0221/active-learning-benchmark"""
    lines = [
        "./run.sh: line 2: 31566 Killed                     python fit.py > fit.log 2>&1",
        "./run.sh: line 3: syntax error near unexpected token `&'",
        "./run.sh: line 3: `&1'",
    ]
    assert told(lines) == ("unknown", 1)
    assert told(lines[1:]) == ("config", 1)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (3221226505, "crash"),
        (3221225477, "crash"),
        (-1073741819, "crash"),
        (3221225786, "cancelled"),
        (3221225000, "unknown"),
    ],
)
def test_windows_ends_programs_with_codes_of_its_own(code, expected):
    """https://github.com/Sanayume/rainfalldata_research, https://learn.microsoft.com/openspecs (MS-ERREF 2.3.1)"""
    assert told([], code)[0] == expected
    assert told(["words", f"--- fit.py finished with errors (return code: {code}) ---"]) == (expected, 2)


def test_a_program_that_prints_only_how_it_is_called():
    """https://github.com/lilianacoste/ParallelNbody"""
    usage = ["usage: ./nbody <input> <dt>", "input can be:", "a number (random)", *["a file name"] * 20]
    assert told(usage) == ("config", 1)
    assert told(["reading", *usage])[0] == "none"
    assert told([*usage, *["words of a run"] * 20])[0] == "none"


def test_what_is_there_already_is_a_matter_of_the_set_up():
    """https://github.com/Chang-Yu-Chang/rhizobia-genomics"""
    raised = "busco.Exceptions.BatchFatalError: A run with the name /data/consensus already exists..."
    assert told([HEAD, *FRAME, raised]) == ("config", 4)


# -- what goes on -------------------------------------------------------------------------------------


def test_an_error_that_a_logger_reports_again_and_again_ended_nothing():
    """https://github.com/CLIS-WPI/Secure-Beamforming"""

    def step(number):
        return [
            f"2025-05-28 20:17:{number},801 - DEBUG - Entering get_vector",
            f"2025-05-28 20:17:{number},803 - ERROR - Error in get_vector: name 'rows' is not defined",
            f"2025-05-28 20:17:{number},804 - DEBUG - Signal power user: 4.83",
            f"2025-05-28 20:17:{number},805 - DEBUG - Entering step with action",
            f"2025-05-28 20:17:{number},806 - DEBUG - Entering get_state",
        ]

    assert told([line for number in range(10, 14) for line in step(number)])[0] == "none"
    assert told(step(10)) == ("user_code", 2)


def test_what_a_profiler_says_of_each_function_is_no_end():
    """https://github.com/martinamonctum/group3_multicore_praktikal"""
    lines = [
        f"1868090 : 0x2dc{n} : 2 : lib : ITTAPI function {'not implemented' if n % 3 else 'instrumented'}: __itt_{n}"
        for n in range(20)
    ]
    assert told(lines)[0] == "none"


def test_a_notebook_server_outlives_what_its_kernels_raise():
    """https://github.com/nikhil-salodkar/age_prediction, https://github.com/ftoralesacosta/h1_asymmetry"""
    raised = [HEAD, *FRAME, "wandb.errors.CommError: Run does not exist a/b/1dxnvm23."]
    serving = [f"[I 19:13:12.{n} NotebookApp] Saving file at /age.ipynb" for n in range(548, 552)]
    assert told([*serving, *raised])[0] == "network"
    assert told([*serving, *raised, *serving])[0] == "none"
    assert told([*raised, serving[0].replace("I 19", "C 19")])[0] == "network"


def test_vllm_stops_serving_once_its_engine_has_died():
    """https://github.com/trietnguyeminh/Submission---EXACT--IJCNN"""
    check = "RuntimeError: Check failed: (status == cudaSuccess) is false: Prefill failed with error invalid argument"
    raised = [HEAD, *FRAME, check]
    dead = [
        HEAD,
        *FRAME,
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).",
    ]
    served = ['INFO:     127.0.0.1:39264 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error']
    stop, well = "INFO:     Shutting down", served[0].replace("500 Internal Server Error", "200 OK")
    assert told([*raised, *dead, *served, stop]) == ("user_code", 4)
    assert told([*raised, well, *dead, *served, stop])[0] == "unknown"
    assert told([*raised, *dead, *served, well])[0] == "none"
    assert told([*raised, *served, stop])[0] == "none"
    assert told([*raised, f"the log says {served[0]}", stop])[0] == "user_code"
    assert told([*raised, *dead, *served, well.replace("POST", "GET")])[0] == "user_code"
    assert told([well, stop, *dead, *served])[0] == "none"
    assert told([*raised, *served, stop, *dead])[0] == "none"
    assert told([well, "INFO: Shutting down old workers", *dead, *served])[0] == "unknown"


def test_a_command_that_airflow_runs_tells_why_it_failed():
    """https://github.com/Alexadr45/mlops3"""
    head = "[2023-12-03 22:17:04,242] {subprocess.py:92} INFO - "
    inner = [f"{head}{line}" for line in (HEAD, *FRAME, "FileNotFoundError: [Errno 2] No such file: 'a.csv'")]
    outer = [
        "[2023-12-03 22:17:04,355] {subprocess.py:96} INFO - Command exited with return code 1",
        "[2023-12-03 22:17:04,368] {taskinstance.py:1889} ERROR - Task failed with exception",
        HEAD,
        '  File "/opt/site-packages/airflow/operators/bash.py", line 194, in execute',
        "    raise AirflowException(",
        "airflow.exceptions.AirflowException: Bash command failed. The command returned a non-zero exit code 1.",
        "[2023-12-03 22:17:04,402] {local_task_job.py:156} INFO - Task exited with return code 1",
    ]
    assert told([*inner, *outer]) == ("config", 4)


def test_a_signal_is_told_by_who_received_it_not_by_the_code_that_follows():
    """https://github.com/08Aristodemus24/usd-php-ml-pipeline"""
    lines = [
        "[2025-03-31T08:46:20.924+0000] {runner.py:127} ERROR - Received SIGTERM. Terminating subprocesses",
        "[2025-03-31T08:46:21.066+0000] {runner.py:266} INFO - Task exited with return code 143",
        "[2025-03-31T08:46:23.569+0000] {runner.py:217} INFO - stop collecting metrics",
    ]
    assert told(lines) == ("preempted", 1)


def test_wandb_hands_on_what_it_raises_as_it_is_set_up():
    """https://github.com/johannesg98/LORR24"""
    head = "2025-02-24 23:32:34,049 ERROR   MainThread:6955 [wandb_init.py:init():1481] "
    raised = [
        HEAD,
        '  File "/opt/site-packages/wandb/sdk/wandb_init.py", line 1471, in init',
        "    return wi.init()",
    ]
    raised += ["ConnectionRefusedError: [Errno 111] Connection refused"]
    assert told([f"{head}error in wandb.init()", *raised]) == ("network", 5)
    assert told([f"{head}error in the sender", *raised])[0] == "none"
    again = head.replace("ERROR", "INFO ") + "run started, returning control to user process"
    assert told([f"{head}error in wandb.init()", *raised, again])[0] == "none"


# -- other programs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["MissingRuleException:", "No rule to produce a.faa (if you use input functions make sure …)."],
            ("config", 2),
        ),
        (
            [
                "[C 23:30:04.759 NotebookApp] Bad config encountered during initialization:",
                "[C 23:30:04.759 NotebookApp] The 'token' trait must be a unicode string",
                *["the usage of it"] * 100,
            ],
            ("config", 1),
        ),
        (["waits for islands", "2 total processes killed (some possibly by mpirun during cleanup)"], ("unknown", 2)),
        ([" ===== Routine Calling Stack ===== ", "", "   7 build_lists", "   1 CP2K"], ("unknown", 1)),
        (
            [
                " ga_orthog: hard zero                 125",
                " This error has not yet been assigned to a category",
                " For more information see the NWChem manual at http://www.nwchem-sw.org/index.php/Documentation",
            ],
            ("unknown", 3),
        ),
        (
            [
                " There is an error in the input file",
                " For more information see the NWChem manual at http://www.nwchem-sw.org/index.php/Documentation",
            ],
            ("config", 1),
        ),
    ],
)  # fmt: skip
def test_other_programs_say_that_they_have_failed(lines, expected):
    """Of GitHub: linda5mith/crassify, hengenlab/lolcat, carterdanko/sru-littlefe-tsp, RemiPasquier/Bi2Te3,
    kruedae/Astatine_work."""
    assert told(lines) == expected


@pytest.mark.parametrize(("signal", "expected"), [("INT", "cancelled"), ("TERM", "preempted")])
def test_gromacs_stops_in_order_when_it_is_told_to(signal, expected):
    """https://github.com/Bedanga-Bora/MD-sim"""
    steps = ["           Step           Time", "        7086100    14172.20000", ""] * 10
    times = [
        f" Update part {n}             1   16    7086101     119.314       5906.776   1.2" for n in range(120)
    ]
    lines = [*steps, f"Received the {signal} signal, stopping within 100 steps", "", *steps, *times]
    assert told([*lines, "Finished mdrun on rank 0 Mon Jul  6 19:42:54 2026"]) == (expected, 31)
