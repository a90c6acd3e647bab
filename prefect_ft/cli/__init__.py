"""The command line `prefect-ft`. It parses words; what a command does is loaded when asked for."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from prefect_ft.errors import (
    ConfigError,
    PrefectFTError,
    RunHeldError,
    SystemHeldError,
    UnfinishedRunError,
)
from prefect_ft.plaintext import as_line

COMPLETED, FAILED, INVALID, CANCELLED = range(4)
"""The exit codes: the run completed, failed, was refused before anything started, was cancelled."""


REFUSALS = (ConfigError, RunHeldError, SystemHeldError, UnfinishedRunError)
"""The errors with which nothing has been started."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error is one line on standard error, never a traceback.

    `argv` is None where this process is that command alone.
    """
    code = _code_of(_parser().parse_args(argv))
    if argv is None:
        # What is left is to tell Prefect the rest and to end its server: Ctrl-C skips that, without a traceback.
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    return code


def _code_of(arguments: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except REFUSALS as error:
        print(f"error: {error}", file=sys.stderr)
        return INVALID
    except PrefectFTError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return CANCELLED
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; nothing is left to tell it
        return FAILED


class _Parser(argparse.ArgumentParser):
    """One whose complaints say nothing to a terminal, whatever the words are of which it complains."""

    def error(self, message: str) -> NoReturn:
        super().error(as_line(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="prefect-ft",
        description="Makes a training run finish: restarts it from the last good checkpoint, and says why.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = _add(commands, "run", _run, "run a job here, restarting what fails")
    _add_job(run)
    run.add_argument(
        "--model-dir", metavar="DIR", help="where the run leaves its files, instead of the job's"
    )
    unfinished = run.add_mutually_exclusive_group()
    for choice, text in (
        ("resume", "go on with the run that the model directory holds, if it has not completed"),
        ("fresh", "end the run that the model directory holds and that nobody watches, and begin anew"),
    ):
        unfinished.add_argument(
            f"--{choice}", dest="unfinished", action="store_const", const=choice, default="refuse", help=text
        )
    again = "for who starts this again whenever it fails: --resume, SIGTERM leaves the run, exit code 0 at its end"
    unfinished.add_argument("--restartable", action="store_true", help=again)
    run.add_argument(
        "--from-scratch",
        action="store_true",
        help="begin without the checkpoints that are there, which stay: resume: never in all phases",
    )
    validate = _add(commands, "validate", _validate, "check a job file and show it with all defaults")
    _add_job(validate)
    _add_classify(commands)
    _add_replay(commands)
    status = _add(commands, "status", _status, "where a run stands")
    report = _add(commands, "report", _report, "what happened to a run, why, and what it cost")
    report.add_argument("--html", metavar="FILE", help="write it as one HTML file that needs nothing else")
    resume = _add(commands, "resume", _resume, "go on with a run whose orchestrator died, or that failed")
    resume.add_argument(
        "--moved", action="store_true", help="its directory was moved, or the machine of its processes is off"
    )
    cancel = _add(commands, "cancel", _cancel, "end a run: its ranks stop within their grace")
    cancel.add_argument("--checkpoint", action="store_true", help="have its ranks save a checkpoint first")
    repair = _add(commands, "repair", _repair, "which lines of a run's journals are damaged")
    repair.add_argument(
        "--drop", action="store_true", help="remove them, so that the run can go on; a copy keeps the journal"
    )
    for command in (status, report, resume, cancel, repair):
        command.add_argument("run", metavar="RUN", help="a model directory, a phase directory or a run id")
    _add_approve(commands)
    known = _add(commands, "list", _list, "the runs known here, and who watches them")
    known.add_argument("model_dir", metavar="MODEL_DIR", nargs="?", help="only those of one model directory")
    logs = _add(commands, "logs", _logs, "what a run's ranks printed")
    logs.add_argument("run", metavar="RUN", help="a model directory, a phase directory or a run id")
    logs.add_argument("--attempt", metavar="N", type=int, help="of one attempt only")
    logs.add_argument("--worker", metavar="N", type=int, help="of one worker only")
    logs.add_argument("--follow", action="store_true", help="go on until the run has ended")
    clean = _add(commands, "clean", _clean, "remove what dead runs left behind on this machine")
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    _add_pool(commands)
    install = _add(
        commands,
        "install-automations",
        _install_automations,
        "make the Prefect automations that bring a killed flow run back",
    )
    install.add_argument(
        "--heartbeat-s",
        metavar="SECONDS",
        type=int,
        help="how often flow runs send a heartbeat, three of which may be missed; "
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY if not given",
    )
    return parser


def _add(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    command: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output, and nothing else")
    parser.set_defaults(command=command)
    return parser


def _add_classify(commands: argparse._SubParsersAction[_Parser]) -> None:
    classify = _add(commands, "classify", _classify, "why did it fail? Reads logs, starts nothing")
    classify.add_argument(
        "logs", metavar="LOG", nargs="+", help="the logs of one job's ranks; - is standard input"
    )
    classify.add_argument(
        "--exit-code", metavar="N", type=int, help="the exit code of the rank that ended first"
    )
    classify.add_argument("--signal", metavar="N", type=int, help="the signal that ended it")
    classify.add_argument(
        "--signatures",
        metavar="FILE",
        help="a YAML file of signatures that are tried before the built-in ones",
    )


def _add_approve(commands: argparse._SubParsersAction[_Parser]) -> None:
    approve = _add(commands, "approve", _approve, "answer to a decision that waits for a person")
    approve.add_argument("run", metavar="RUN", help="a model directory, a phase directory or a run id")
    instead = approve.add_mutually_exclusive_group()
    instead.add_argument("--reject", action="store_true", help="restart instead, and isolate nothing")
    instead.add_argument(
        "--action",
        choices=("restart_in_place", "rebuild", "fail"),
        help="do this instead, and isolate nothing",
    )
    instead.add_argument(
        "--isolate", metavar="SYSTEM", action="append", default=[], help="isolate this system instead"
    )
    approve.add_argument("--by", metavar="NAME", help="who says so; your user name if not given")


def _add_pool(commands: argparse._SubParsersAction[_Parser]) -> None:
    text = "the systems in quarantine, with which no run begins"
    pool = commands.add_parser("pool", help=text, description=text[0].upper() + text[1:] + ".")
    actions = pool.add_subparsers(metavar="ACTION", required=True)
    listed = _add(actions, "list", _pool_list, "which systems are in quarantine, and why")
    release = _add(actions, "release", _pool_release, "let runs use a system again, the next one on")
    release.add_argument("system", metavar="SYSTEM")
    for action in (listed, release):
        action.add_argument(
            "--file",
            metavar="PATH",
            help="the quarantine; all that jobs of runs known here name if not given",
        )


def _add_replay(commands: argparse._SubParsersAction[_Parser]) -> None:
    replay = _add(commands, "replay", _replay, "what would this policy decide? Starts nothing")
    replay.add_argument("job", metavar="JOB.yaml")
    replay.add_argument(
        "recording", metavar="INCIDENTS.jsonl", help="a file of incidents, or the journal.jsonl of a phase"
    )
    replay.add_argument(
        "--phase",
        metavar="NAME",
        help="the phase whose policy is asked; the one that the journal names, or the first, if not given",
    )
    replay.add_argument(
        "--diff",
        action="store_true",
        help="show only what the policy decides otherwise than the journal records; each incident is decided "
        "about after what was really done before it, and not as if the policy's own decisions had been",
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="put a value over the job file's"
    )


def _run(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.run import run  # loads Prefect

    return run(
        arguments.job,
        arguments.set,
        arguments.model_dir,
        unfinished="resume" if arguments.restartable else arguments.unfinished,
        is_restartable=arguments.restartable,
        from_scratch=arguments.from_scratch,
        as_json=arguments.json,
    )


def _resume(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.run import resume  # loads Prefect

    return resume(arguments.run, is_moved=arguments.moved, as_json=arguments.json)


def _cancel(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.manage import cancel  # loads pydantic

    return cancel(arguments.run, with_checkpoint=arguments.checkpoint, as_json=arguments.json)


def _repair(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.repair import repair  # not every command needs it

    return repair(arguments.run, drop=arguments.drop, as_json=arguments.json)


def _approve(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.approve import approve  # not every command needs it

    return approve(
        arguments.run,
        reject=arguments.reject,
        action=arguments.action,
        isolate=arguments.isolate,
        by=arguments.by,
        as_json=arguments.json,
    )


def _list(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.manage import list_runs  # loads rich

    return list_runs(arguments.model_dir, as_json=arguments.json)


def _logs(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.logs import logs  # not every command needs it

    return logs(
        arguments.run,
        attempt=arguments.attempt,
        worker=arguments.worker,
        follow=arguments.follow,
        as_json=arguments.json,
    )


def _clean(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.manage import clean  # loads rich

    return clean(dry_run=arguments.dry_run, as_json=arguments.json)


def _pool_list(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.pool import list_pool  # loads rich

    return list_pool(arguments.file, as_json=arguments.json)


def _pool_release(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.pool import release  # loads rich

    return release(arguments.system, arguments.file, as_json=arguments.json)


def _install_automations(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.automations import install  # loads Prefect

    return install(arguments.heartbeat_s, as_json=arguments.json)


def _validate(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.validate import validate  # loads pydantic

    return validate(arguments.job, arguments.set, as_json=arguments.json)


def _classify(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.classify import classify  # loads the catalogue

    return classify(
        arguments.logs,
        arguments.exit_code,
        arguments.signal,
        arguments.signatures,
        as_json=arguments.json,
    )


def _replay(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.replay import replay  # loads pydantic

    return replay(
        arguments.job, arguments.recording, arguments.phase, diff=arguments.diff, as_json=arguments.json
    )


def _status(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.show import status  # loads rich

    return status(arguments.run, as_json=arguments.json)


def _report(arguments: argparse.Namespace) -> int:
    from prefect_ft.cli.show import report  # loads rich

    return report(arguments.run, arguments.html, as_json=arguments.json)
