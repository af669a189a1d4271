"""The commands `serve`, `store` and `token`."""

from __future__ import annotations

import argparse
import ctypes
import functools
import platform
import re
import socket
import time
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bgad.cli import console
from bgad.cli.options import add_command, add_precision, number
from bgad.errors import ConfigError, DataError
from bgad.io.cpus import usable_cpus

if TYPE_CHECKING:
    from bgad.service.store.store import Store
    from bgad.service.store.tokens import Token
    from bgad.service.workbench import Workbench

DEMO = Path("bgad-demo")
PORT = 8765
OPEN_FILES, RESERVED_FILES = 2**14, 256  # wanted, and of them for other things than connections
GRACE_SECONDS = 5  # for requests to end when the service is stopped
JOB_MINUTES, JOB_MEMORY = 120.0, 12.0  # limits of a teaching job
MIN_FREE_MB = 256.0
_M_ARENA_MAX = -8  # as in malloc.h of glibc


def add_serve(commands: Any) -> None:
    """Register the command `serve`."""
    parser = add_command(
        commands,
        "serve",
        _serve,
        "Start the workbench: score, review, teach, compare and release, in a browser and over HTTP.",
        "The service listens on this machine only. To open it to others, create a token with `bgad token`, then start\n"
        "with --host 0.0.0.0 behind a proxy that adds TLS; every request then needs a token.\n\n"
        "For more images than one machine scores, start scorers beside it with --role scorer: any number, of the same\n"
        "bgad version, with the same store on PostgreSQL and the same shared folder of models. A scorer takes images\n"
        "and answers questions. It runs no job, no migration and no cleaning, and refuses every other change: that is\n"
        "for the main service. It uses a newly released model from the next image on. A load balancer spreads the\n"
        "images over the scorers.\n\n"
        "examples:\n  bgad serve                          (after `make demo`)\n  bgad serve --models /srv/models\n"
        "  bgad serve --models /srv/models --store postgresql://bgad@db/bgad\n"
        "  bgad serve --models /srv/models --store postgresql://bgad@db/bgad --role scorer --port 8766\n"
        "  curl --data-binary @part.png 'localhost:8765/v1/models/gear/score?filename=part.png'",
    )
    _add_models(parser)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of the models' data sets, by name, for teaching (default: MODELS/data)",
    )
    parser.add_argument(
        "--role",
        choices=("main", "scorer"),
        default="main",
        help="main: everything, one for each store; scorer: scoring only, any number beside it (default: main)",
    )
    add_precision(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=number(int, 0, 65536), default=PORT, help=f"(default {PORT})")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="HOST",
        help="a host name under which browsers reach the service through a proxy on this machine; may be repeated",
    )
    _add_limits(parser.add_argument_group("limits"))


def _add_limits(group: Any) -> None:
    group.add_argument(
        "--max-upload-mb",
        type=number(float, 0.001),
        default=64,
        metavar="MB",
        help="largest file size of an image (default 64)",
    )
    group.add_argument(
        "--max-megapixels", type=number(float, 0.001), default=50, metavar="N", help="largest image (default 50)"
    )
    group.add_argument(
        "--max-models",
        type=number(int, 1),
        default=16,
        metavar="N",
        help="released models in memory; beyond it, the least recently used one is unloaded (default 16)",
    )
    group.add_argument(
        "--retention-days",
        type=number(float, 0.01),
        metavar="N",
        help="drop images that nobody reviewed in N days; their scores stay (default: keep all)",
    )
    group.add_argument(
        "--min-free-mb",
        type=number(float, 0),
        default=MIN_FREE_MB,
        metavar="MB",
        help=f"free space on the disk below which no more images and jobs are taken (default {MIN_FREE_MB:g})",
    )
    group.add_argument(
        "--job-minutes",
        type=number(float, 0.01),
        default=JOB_MINUTES,
        metavar="N",
        help=f"time limit of a teaching job (default {JOB_MINUTES:g})",
    )
    group.add_argument(
        "--job-memory",
        type=number(float, 0.1),
        default=JOB_MEMORY,
        metavar="GB",
        help=f"memory limit of a teaching job (default {JOB_MEMORY:g})",
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="folder of model folders (default: the current folder, or ./bgad-demo if it has none)",
    )
    parser.add_argument(
        "--store", metavar="URL", help="postgresql://user@host/name in place of an SQLite file beside the models"
    )


def _models(arguments: argparse.Namespace) -> Path:
    """Return the folder of models."""
    models: Path | None = arguments.models
    if models is None:
        models = next((folder for folder in (Path(), DEMO) if any(folder.glob("*.bgad"))), None)
        if models is None:
            raise DataError("no model folder (NAME.bgad) here: give --models DIR, or run `bgad demo` first")
    if not models.is_dir():
        raise DataError(f"{models}: no such folder of models")
    return models


def _store_address(arguments: argparse.Namespace, models: Path) -> str:
    """Return the address of the store; the folder of the default SQLite file is created."""
    from bgad.service.folders import Folders

    if arguments.store:
        return str(arguments.store)
    folders = Folders.of(models)
    folders.workspace.mkdir(exist_ok=True)
    return folders.sqlite_address


def _serve(arguments: argparse.Namespace) -> int:
    import uvicorn  # noqa: F401 - a missing package is told before anything is done

    from bgad.io import files
    from bgad.service.folders import WORKSPACE
    from bgad.service.role import Role
    from bgad.service.store import instance_lock
    from bgad.service.store.store import Store

    _limit_arenas()
    models, role = _models(arguments), Role(arguments.role)
    if role is Role.SCORER:
        _check_scorer(arguments, models / WORKSPACE)
    elif not (models / WORKSPACE).exists() and not any(models.glob("*.bgad")):
        raise DataError(f"{models}: no model that could be read; put NAME.bgad folders there")
    # Scorers share the folder with the main service, whose lock it is.
    with files.locked(models / WORKSPACE, "service", "--models") if role is Role.MAIN else nullcontext():
        address = _store_address(arguments, models)
        with instance_lock.hold(address, role):
            if role is Role.MAIN:
                _check_upgrade(address)
            with closing(Store(address, migrate=role is Role.MAIN)) as store:
                _say_copy(store)
                _run(arguments, models, store, address)
    console.say(f"stopped; everything is in {models / WORKSPACE}")
    return 0


def _limit_arenas() -> None:
    """Let the threads share as many arenas of glibc's malloc as there are cores, but at least 2, instead of eight for
    each core.

    What is freed in one arena is of no use to the threads of another: 24 threads on 2 cores left 21 of 82 MB idle; with
    2 arenas, 9 of 71 MB.
    """
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, max(2, usable_cpus()))


def _check_upgrade(address: str) -> None:
    """Raise ConfigError if a store on PostgreSQL must be upgraded: nobody but its administrator can copy it first."""
    from bgad.service.store import dialects, upgrade
    from bgad.service.store.schema import Age

    if dialects.url(address).get_backend_name() == "postgresql" and upgrade.age_of(address) is Age.OLDER:
        raise ConfigError(
            f"the store is of an older version: copy it with `{upgrade.dump_command(address)}`, then run "
            "`bgad store upgrade --yes` with the same --models and --store"
        )


def _say_copy(store: Store) -> None:
    if store.database.copy is not None:
        console.say(f"the store was upgraded; as it was before, it is in {store.database.copy}")


def _check_scorer(arguments: argparse.Namespace, workspace: Path) -> None:
    """Raise an error for options that mean nothing to a scorer, or a folder that no main service has used."""
    from bgad.artifact.card import FLOAT32

    unused = {
        "--data": arguments.data is not None,
        "--precision": arguments.precision != FLOAT32,
        "--retention-days": arguments.retention_days is not None,
        "--job-minutes": arguments.job_minutes != JOB_MINUTES,
        "--job-memory": arguments.job_memory != JOB_MEMORY,
    }
    option = next((name for name, given in unused.items() if given), None)
    if option is not None:
        raise ConfigError(f"{option} is for the main service: leave it out with --role scorer")
    if not workspace.is_dir():
        raise DataError(f"{workspace}: no such folder; give the --models of the main service, which must have run once")


def _run(arguments: argparse.Namespace, models: Path, store: Store, address: str) -> None:
    """Run the service until it is stopped."""
    import uvicorn

    from bgad.service import access, demo_seed
    from bgad.service.http import app
    from bgad.service.http.protocol import MAX_CONNECTIONS, ConnectionPool, GuardedProtocol
    from bgad.service.http.security import LOCAL_HOSTS, AccessRules
    from bgad.service.role import Role
    from bgad.service.store import dialects
    from bgad.service.teaching.process import JobLimits
    from bgad.service.teaching.runner import JobRunner

    host_names = tuple(_host_name(name) for name in arguments.allowed_host)
    with dialects.opening(address):
        has_tokens = bool(store.tokens.all())
        exposed = next((host for host in (arguments.host, *host_names) if not access.is_local(host)), None)
        if exposed is not None and not has_tokens:
            raise ConfigError(
                f"{exposed} can be reached from other machines, and no token guards it: make one first with "
                f"`bgad token add NAME --role admin --models {models}`"
            )
        workbench = _workbench(arguments, models, store)
        names = workbench.registry.names()
    if not names:
        raise DataError(f"{models}: no model that could be read; put NAME.bgad folders there")
    limits = JobLimits(arguments.job_minutes, arguments.job_memory)
    runner = JobRunner(store, workbench.registry, workbench.blobs, workbench.folders, limits, workbench.free_space)
    is_local = access.is_local(arguments.host)
    hosts = (*LOCAL_HOSTS, *host_names) if is_local else ()  # an exposed address can have any name
    service = app.create(workbench, runner, AccessRules(hosts, has_tokens))
    listening = _listen(arguments.host, arguments.port)
    port = listening.getsockname()[1]
    if arguments.data is None and workbench.role is Role.MAIN:
        demo_seed.seed_test_images(workbench)
    console.say(f"{len(names)} models from {models}: {', '.join(names)}")
    opening = "open" if workbench.role is Role.MAIN else "scorer: send images to"
    console.say(f"{opening} http://{'localhost' if is_local else arguments.host}:{port} (stop with Ctrl-C)")
    pool = ConnectionPool(min(MAX_CONNECTIONS, _raise_open_files() - RESERVED_FILES))
    config = uvicorn.Config(
        service,
        http=cast(Any, functools.partial(GuardedProtocol, pool=pool)),  # anything that makes a protocol will do
        ws="none",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with listening, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def _raise_open_files() -> int:
    """Let this process open as many files as the system allows; return how many connections and files that is."""
    try:
        import resource
    except ImportError:  # on Windows, whose sockets have no such limit
        return RESERVED_FILES + 2**14
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def _workbench(arguments: argparse.Namespace, models: Path, store: Store) -> Workbench:
    from bgad.service.folders import Folders
    from bgad.service.role import Role
    from bgad.service.scoring.ingest import ImageLimits
    from bgad.service.workbench import Workbench, WorkbenchSettings

    settings = WorkbenchSettings(
        ImageLimits(int(arguments.max_upload_mb * 2**20), int(arguments.max_megapixels * 1e6)),
        arguments.max_models,
        arguments.retention_days,
        int(arguments.min_free_mb * 2**20),
        Role(arguments.role),
        arguments.precision,
    )
    return Workbench(Folders.of(models, arguments.data), store, settings)


def _host_name(given: str) -> str:
    if not re.fullmatch(r"[\w.-]+", given):
        raise ConfigError(f"{given!r} is no name of a host: give it without https:// and without a port")
    return given.lower()


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; ConfigError if the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{host} is no address to listen on: {error.strerror or error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on port {port} of {host} ({reason}): give another --port") from error
    return listening


def add_store(commands: Any) -> None:
    """Register the command `store`."""
    parser = add_command(
        commands,
        "store",
        _upgrade_store,
        "Upgrade the store of the workbench to this version of bgad.",
        "`bgad serve` upgrades an SQLite file by itself; no other command changes a store of an older version. An\n"
        "SQLite file is copied first. A store on PostgreSQL is yours to copy: the command says how, and goes on with\n"
        "--yes. All services must have ended.\n\n"
        "examples:\n  bgad store upgrade --models /srv/models\n"
        "  bgad store upgrade --models /srv/models --store postgresql://bgad@db/bgad --yes",
    )
    parser.add_argument("what", choices=("upgrade",))
    parser.add_argument("--yes", action="store_true", help="a store on PostgreSQL has been copied: upgrade it")
    _add_models(parser)


def _upgrade_store(arguments: argparse.Namespace) -> int:
    from bgad.io import files
    from bgad.service.folders import WORKSPACE
    from bgad.service.store import instance_lock, upgrade
    from bgad.service.store.schema import Age
    from bgad.service.store.store import Store

    models = _models(arguments)
    address = _store_address(arguments, models)
    with files.locked(models / WORKSPACE, "service", "--models"), instance_lock.hold(address):
        age = upgrade.age_of(address)
        if age is Age.OLDER and not arguments.yes:
            _check_upgrade(address)
        if age is not Age.EMPTY:
            with closing(Store(address)) as store:  # a newer one is refused here
                _say_copy(store)
    done = {Age.EMPTY: "there is no store yet: `bgad serve` makes it", Age.OLDER: "the store has been upgraded"}
    console.say(done.get(age, "the store is of this version already"))
    return 0


def add_token(commands: Any) -> None:
    """Register the command `token`."""
    parser = add_command(
        commands,
        "token",
        _token,
        "Create, list or revoke the access tokens of the workbench.",
        "Roles: score (send images), review (also look at results and review them), admin (also teach and release).\n"
        "A token with the role score sees the maps of the images that it sent itself.\n"
        "A token is shown once; the store keeps only its hash.\n\n"
        "examples:\n  bgad token add camera-3 --role score --model gear --expires 365d\n  bgad token list\n"
        "  bgad token drop camera-3",
    )
    parser.add_argument("what", choices=("add", "list", "drop"))
    parser.add_argument("name", nargs="?", metavar="NAME", help="person or machine that uses the token")
    parser.add_argument("--role", choices=("score", "review", "admin"), default="score", help="(default: score)")
    parser.add_argument(
        "--model", action="append", metavar="NAME", help="model that the token is for; may be repeated (default: all)"
    )
    parser.add_argument(
        "--expires", type=_seconds, metavar="TIME", help="time until it expires: 12h, 30d, 8w (default: never)"
    )
    _add_models(parser)


def _seconds(text: str) -> float:
    """Parse a time such as 12h, 30d or 8w."""
    match = re.fullmatch(r"([0-9]{1,6})([hdw])", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give hours, days or weeks, such as 12h, 30d or 8w")
    return int(match[1]) * {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}[match[2]]


def _token(arguments: argparse.Namespace) -> int:
    from bgad.service.store import dialects, upgrade
    from bgad.service.store.schema import Age
    from bgad.service.store.store import Store

    address = _store_address(arguments, _models(arguments))
    is_new = upgrade.age_of(address) is Age.EMPTY  # the first token may come before the first service
    with closing(Store(address, migrate=is_new)) as store, dialects.opening(address):
        return _change_tokens(arguments, store)


def _change_tokens(arguments: argparse.Namespace, store: Store) -> int:
    from bgad.service import access

    if arguments.what == "list":
        for token in store.tokens.all():
            print(_token_line(token, is_expired=store.tokens.is_expired(token)))  # noqa: T201
        return 0
    if not arguments.name:
        raise ConfigError(f"whose token is to be {'made' if arguments.what == 'add' else 'dropped'}? Give a NAME")
    if arguments.what == "drop":
        if not store.tokens.remove(arguments.name):
            raise ConfigError(f"{arguments.name!r} has no token; `bgad token list` shows who has")
        console.say(f"{arguments.name} has no token any more")
        return 0
    for model in arguments.model or ():
        if model not in store.versions.names() and not (_models(arguments) / f"{model}.bgad").is_dir():
            raise ConfigError(f"there is no model {model!r}: give the NAME of a folder NAME.bgad")
    expires = None if arguments.expires is None else time.time() + arguments.expires
    made = access.new_token(store.tokens, arguments.name, arguments.role, models=arguments.model, expires=expires)
    print(made)  # noqa: T201
    console.say(f"the token of {arguments.name} ({arguments.role}); it is not shown again")
    return 0


def _token_line(token: Token, *, is_expired: bool) -> str:
    def day(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")

    ends = (
        "never expires" if token.expires is None else f"{'expired' if is_expired else 'expires'} {day(token.expires)}"
    )
    used = "never used" if token.used is None else f"used {day(token.used)}"
    models = "all models" if token.models is None else ", ".join(token.models)
    return f"{token.role:7s} {console.printable(token.name)}: {console.printable(models)}; {ends}; {used}"
