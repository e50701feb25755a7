"""Environments that go wrong in every way, and what is left of them: nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longboat_graders.episode_messages import EpisodeEnd, EpisodeResult
from longboat_runtime.episodes.client import EpisodeClient
from tests.episodes.conftest import (
    MIB,
    Endpoint,
    Player,
    episode_directories,
    marked,
    running_environments,
    start_environments_in,
)
from tests.support.waiting import eventually_async


@pytest.fixture(autouse=True)
async def _nothing_is_left(client: EpisodeClient, directory: Path, mark: str) -> AsyncIterator[None]:
    """Nothing is left of any episode once its result is there."""
    yield
    assert (await client.state())["playing"] == 0
    assert marked(mark) == []
    assert episode_directories(directory) == set()


def scratch_directories(directory: Path) -> list[Path]:
    return [*directory.glob("longboat-graders-*")]


def entries(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def segments() -> list[int]:
    """System V shared memory, by its ids."""
    return [int(line.split()[1]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


async def play_and_stop(player: Player, source: str, episode: str, **arguments: object) -> EpisodeResult:
    """Stops an episode once its code runs."""
    started = asyncio.Event()
    play = asyncio.create_task(player.play_source(source, episode=episode, started=started.set, **arguments))
    await started.wait()
    player.client.stop(episode)
    return await play


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        ("ctypes.string_at(0)", "signal 11"),
        ("os._exit(0)", "exited with code 0 before it returned"),
        (
            "os.kill(os.getpid(), signal.SIGTERM)\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\nos.kill(os.getpid(), 15)",
            "signal 15",
        ),
    ],
)
async def test_one_that_crashes_is_lost(player: Player, source: str, said: str) -> None:
    result = await player.play_source(f"print('the last words')\n{source}\nawait asyncio.sleep(1e6)")
    assert (result.end, result.output) == (EpisodeEnd.LOST, "the last words\n")
    assert said in result.message


@pytest.mark.parametrize(
    "error", ["SystemExit(0)", "KeyboardInterrupt()", "asyncio.CancelledError()", "BaseException('x')"]
)
async def test_one_that_raises_what_ends_programs_is_an_error(player: Player, error: str) -> None:
    result = await player.play_source(f"raise {error}")
    assert result.end is EpisodeEnd.ERROR
    assert error.partition("(")[0].removeprefix("asyncio.") in result.message


async def test_a_stopped_one_is_told_and_may_tidy_up(player: Player, mark: str) -> None:
    source = (
        f"child = subprocess.Popen(['sleep', '{mark}'])\n"
        "try:\n    await asyncio.sleep(1e6)\nfinally:\n    child.kill()\n    print('tidied up', child.wait(), flush=True)"
    )
    result = await play_and_stop(player, source, "told")
    assert (result.end, result.reward, result.output) == (EpisodeEnd.STOPPED, None, "tidied up -9\n")


async def test_those_that_do_not_stop_are_killed(player: Player, mark: str) -> None:
    sources = [
        f"subprocess.run(['sleep', '{mark}'])",  # blocks
        "while True:\n    pass",
        "while True:\n    try:\n        await asyncio.sleep(1e6)\n    except asyncio.CancelledError:\n        print('no')",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(1e6)",
        f"os.fork()\nos.execvp('sleep', ['sleep', '{mark}'])",
    ]
    results = await asyncio.gather(*(play_and_stop(player, source, str(n)) for n, source in enumerate(sources)))
    assert [result.end for result in results] == [EpisodeEnd.STOPPED] * len(sources)
    assert results[2].output == "no\n"


async def test_what_it_returns_when_it_was_told_does_not_count(player: Player) -> None:
    source = "try:\n    await asyncio.sleep(1e6)\nexcept asyncio.CancelledError:\n    return 1"
    result = await play_and_stop(player, source, "late")
    assert (result.end, result.reward) == (EpisodeEnd.STOPPED, None)


async def test_the_wall_limit_loses_it(player: Player) -> None:
    result = await player.play_source("await asyncio.sleep(1e6)", wall_seconds=0.5)
    assert result.end is EpisodeEnd.LOST
    assert "limits.wallSeconds" in result.message


async def test_a_call_that_is_cancelled_stops_its_episode(player: Player, client: EpisodeClient) -> None:
    started = asyncio.Event()
    play = asyncio.create_task(player.play_source("await asyncio.sleep(1e6)", started=started.set))
    await started.wait()
    play.cancel()
    await eventually_async(client.state, right=lambda state: state["playing"] == 0)


async def test_episodes_of_a_client_that_goes_away_are_stopped(
    player: Player, client: EpisodeClient, environments: Path, mark: str
) -> None:
    other = Player(EpisodeClient(environments), player.directory, player.endpoint)
    started = asyncio.Event()
    play = asyncio.create_task(
        other.play_source(f"subprocess.Popen(['sleep', '{mark}'])\nawait asyncio.sleep(1e6)", started=started.set)
    )
    await started.wait()
    await other.client.close()
    assert (await play).end is EpisodeEnd.LOST
    await eventually_async(client.state, right=lambda state: state["playing"] == 0)


# --- Processes ---------------------------------------------------------------------------------------------------------

DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 4)
        os.execvp("sleep", ["sleep", "{mark}"])
    os._exit(0)
os.wait()
while not any(b"{mark}" in open(f"/proc/{{pid}}/cmdline", "rb").read() for pid in os.listdir("/proc") if pid.isdigit() and os.path.exists(f"/proc/{{pid}}/cmdline")):
    await asyncio.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("end", "expected"),
    [("return 1", EpisodeEnd.FINISHED), ("raise ValueError", EpisodeEnd.ERROR), ("os._exit(3)", EpisodeEnd.LOST)],
)
async def test_daemons_end_with_their_episode(player: Player, mark: str, end: str, expected: EpisodeEnd) -> None:
    result = await player.play_source(DAEMON.format(mark=mark) + end)
    assert result.end is expected


@pytest.mark.parametrize(
    "source",
    [
        "while True:\n    os.fork()",
        "while True:\n    os.fork() or os.setsid()",
        "for _ in range(1000):\n    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\nawait asyncio.sleep(1e6)",
        "for _ in range(1000):\n    subprocess.Popen(['sleep', '{mark}'])\nawait asyncio.sleep(1e6)",
    ],
)
async def test_one_with_too_many_processes_is_lost(player: Player, mark: str, source: str) -> None:
    result = await player.play_source(source.replace("{mark}", mark))
    assert result.end is EpisodeEnd.LOST
    assert "more than 32 processes and threads" in result.message


async def test_few_processes_and_threads_are_no_matter(player: Player) -> None:
    source = (
        "for _ in range(100):\n    subprocess.run(['true'], check=True)\n"
        "results = await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.001) for _ in range(100)))\n"
        "process = await asyncio.create_subprocess_exec('cat', stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "said, _ = await process.communicate(b'hello')\n"
        "return float(said == b'hello')"
    )
    result = await player.play_source(source)
    assert (result.end, result.reward) == (EpisodeEnd.FINISHED, 1.0), result.message


# --- Memory, files, output ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "ends"),
    [
        ("held = b'x' * 2**30\nawait asyncio.sleep(1e6)", "MemoryError"),
        (
            "held = mmap.mmap(-1, 2**30)\nfor at in range(0, 2**30, 4096): held[at] = 1\nawait asyncio.sleep(1e6)",
            "limits.memory",
        ),
        (
            "for _ in range(4):\n    if os.fork() == 0:\n        held = b'x' * 90_000_000\n        time.sleep(1e6)\nawait asyncio.sleep(1e6)",
            "limits.memory",
        ),
    ],
)
async def test_one_that_fills_memory_ends(player: Player, source: str, ends: str) -> None:
    result = await player.play_source(source, memory=256 * MIB)
    assert result.end is (EpisodeEnd.ERROR if ends == "MemoryError" else EpisodeEnd.LOST)
    assert ends in result.message


@pytest.mark.parametrize(
    ("source", "end", "said"),
    [
        ("open('big', 'wb').write(bytes(17 * 2**20))\nawait asyncio.sleep(1e6)", EpisodeEnd.ERROR, "File too large"),
        (
            "for n in range(100):\n    open(f'{n}', 'wb').write(bytes(2**20))\nawait asyncio.sleep(1e6)",
            EpisodeEnd.LOST,
            "limits.fileSize",
        ),
        (
            "held = [tempfile.TemporaryFile() for _ in range(30)]\nfor each in held: each.write(bytes(2**20)); each.flush()\nawait asyncio.sleep(1e6)",
            EpisodeEnd.LOST,
            "limits.fileSize",
        ),
        ("for n in range(11_000):\n    os.mkdir(f'{n}')\nawait asyncio.sleep(1e6)", EpisodeEnd.LOST, "10000 files"),
    ],
)
async def test_one_that_fills_the_disk_ends(player: Player, source: str, end: EpisodeEnd, said: str) -> None:
    result = await player.play_source(source)
    assert result.end is end, result.message
    assert said in result.message


async def test_files_that_resist_are_removed(player: Player) -> None:
    source = (
        "for _ in range(1200):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
        "open('f', 'w').close()\nos.chmod('.', 0)\nos.symlink('/', os.environ['HOME'] + '/link')\nos.mkfifo(os.environ['HOME'] + '/fifo')"
    )
    assert (await player.play_source(source)).end is EpisodeEnd.FINISHED


async def test_a_link_in_place_of_its_directory_is_removed_and_nothing_else(player: Player, directory: Path) -> None:
    """The zygote, and what else it plays, goes on."""
    elsewhere, started = directory / "elsewhere", asyncio.Event()
    waits = "while not os.path.exists(task):\n    await asyncio.sleep(0.01)\nreturn 1"
    other = asyncio.create_task(
        player.play_source(waits, task=f"{elsewhere}/end", episode="other", started=started.set)
    )
    await started.wait()
    link = f"place = os.getcwd()\nos.rmdir(place)\nos.mkdir('{elsewhere}')\nopen('{elsewhere}/kept', 'x').close()\nos.symlink('{elsewhere}', place)\nreturn 2"
    assert (await player.play_source(link)).reward == 2.0
    kept = f"os.rename('{elsewhere}/kept', '{elsewhere}/end')\nreturn 3"
    assert (await player.play_source(kept)).reward == 3.0
    assert (await other).reward == 1.0


async def test_one_that_prints_a_lot_goes_on(player: Player) -> None:
    source = (
        "for _ in range(200):\n    os.write(1, b'x' * 2**19)\n    os.write(2, b'y' * 2**19)\n"
        "print('the end')\nos.write(1, b'\\xff\\n')\nreturn 1"
    )
    result = await player.play_source(source)
    assert (result.end, result.reward) == (EpisodeEnd.FINISHED, 1.0)
    assert result.output.endswith("the end\n\ufffd\n")
    assert len(result.output) <= 4000


# --- What others use too -----------------------------------------------------------------------------------------------


async def test_temporary_files_and_shared_memory_go_once_no_older_episode_runs(
    player: Player, directory: Path, client: EpisodeClient
) -> None:
    temporary = directory / "temporary"
    started = asyncio.Event()
    older = asyncio.create_task(player.play_source("await asyncio.sleep(1e6)", episode="older", started=started.set))
    await started.wait()
    leaves = (
        f"os.makedirs('{temporary}/left/deep')\nopen('{temporary}/left/deep/file', 'w').close()\nopen('{temporary}/other', 'w').close()\n"
        "library = ctypes.CDLL(None)\nreturn library.shmget(0, 4096, 0o1600)"
    )
    segment = (await player.play_source(leaves)).reward
    assert segment is not None

    assert int(segment) in segments()
    # While an episode runs that might use them they stay.
    await player.play_source("return 1")
    assert entries(temporary) == {"left", "other"}
    client.stop("older")
    await older
    await eventually_async(lambda: entries(temporary), right=lambda names: not names)
    await eventually_async(segments, right=lambda all_: int(segment) not in all_)


# --- Processes of ours that die ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["keeper", "zygote"])
async def test_an_episode_is_lost_with_what_watches_it(
    player: Player, client: EpisodeClient, directory: Path, mark: str, who: str
) -> None:
    victim = (
        "os.getppid()"
        if who == "keeper"
        else "int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"
    )
    result = await player.play_source(DAEMON.format(mark=mark) + f"os.kill({victim}, 9)\nawait asyncio.sleep(1e6)")
    assert result.end is EpisodeEnd.LOST
    await eventually_async(lambda: marked(mark), right=lambda pids: not pids)
    # The next one plays, and directories of the dead go with it at the latest.
    assert (await player.play_source("return 1")).reward == 1.0
    await eventually_async(lambda: episode_directories(directory), right=lambda left: not left)


async def test_a_server_that_restarts_leaves_nothing_behind(endpoint: Endpoint, own_directory: Path, mark: str) -> None:
    temporary = own_directory / "temporary"
    server = start_environments_in(own_directory)
    player = Player(EpisodeClient(own_directory / "environments.sock"), own_directory, endpoint)
    started = asyncio.Event()
    source = (
        f"subprocess.Popen(['sleep', '{mark}'])\nopen('{temporary}/left', 'w').close()\nopen('mine', 'w').close()\n"
        "await asyncio.sleep(1e6)"
    )
    play = asyncio.create_task(player.play_source(source, started=started.set))
    await started.wait()
    await eventually_async(lambda: entries(temporary))
    # As a container's processes end: all at once.
    (zygote,) = _children(server.pid)
    episodes = [pid for keeper in _children(zygote) for pid in (keeper, *_children(keeper))]
    sleeping = await eventually_async(lambda: marked(mark))
    for pid in (server.pid, zygote, *episodes, *sleeping):
        os.kill(pid, signal.SIGKILL)
    server.wait()
    assert (await play).end is EpisodeEnd.LOST
    with running_environments(own_directory):
        assert (await player.play_source("return 1")).reward == 1.0
        assert entries(temporary) == set()
        assert episode_directories(own_directory) == set()
        assert len(scratch_directories(own_directory)) == 1
        await player.client.close()
    assert scratch_directories(own_directory) == []


async def test_a_server_that_is_told_to_end_plays_on_until_its_client_leaves(
    endpoint: Endpoint, own_directory: Path, mark: str
) -> None:
    server = start_environments_in(own_directory)
    player = Player(EpisodeClient(own_directory / "environments.sock"), own_directory, endpoint)
    assert (await player.play_source("return 1")).reward == 1.0
    started = asyncio.Event(), asyncio.Event()
    may_end = own_directory / "may-end"
    patient = f"while not os.path.exists('{may_end}'):\n    await asyncio.sleep(0.01)\nreturn 2"
    ends = asyncio.create_task(player.play_source(patient, episode="ends", started=started[0].set))
    hangs = asyncio.create_task(
        player.play_source(DAEMON.format(mark=mark) + "await asyncio.sleep(1e6)", started=started[1].set)
    )
    for event in started:
        await event.wait()
    await eventually_async(lambda: marked(mark))
    server.terminate()
    may_end.touch()
    assert ((await ends).end, (await ends).reward) == (EpisodeEnd.FINISHED, 2.0)
    await player.client.close()
    assert (await hangs).end is EpisodeEnd.LOST
    assert await eventually_async(server.poll, right=lambda code: code is not None) == 0
    assert marked(mark) == []
    assert scratch_directories(own_directory) == []


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
