"""The place that a launcher's environment gives a process, and the ranks that it then hosts."""

import pytest

from wanc.errors import RequestError
from wanc.processes.launch import VARIABLES, Launch, hosted_ranks, interface_address, named

PLAIN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
TORCHRUN = {
    **PLAIN,
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "nightly",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in PLAIN.items() if name not in names}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HOME": "/root", "OMP_NUM_THREADS": "4"},
        {"WORLD_SIZE": "1"},
        {**PLAIN, "RANK": "0", "WORLD_SIZE": "1"},
        without("RANK", "WORLD_SIZE"),  # left over in a shell
        dict.fromkeys(VARIABLES, ""),
    ],
    ids=["empty", "unrelated", "one", "torchrun of one", "address", "blank"],
)
def test_no_other_process(environment):
    assert Launch.of(environment) is None


def test_all_that_torchrun_sets():
    assert Launch.of(TORCHRUN) == Launch(
        process=5,
        processes=8,
        host="127.0.0.1",
        port=29501,
        address="127.0.0.1",
        attempt="nightly-2",
        has_store=True,
    )


def test_the_least_that_a_launcher_sets():
    assert Launch.of(PLAIN) == Launch(
        process=1,
        processes=2,
        host="127.0.0.1",
        port=29501,
        address="127.0.0.1",
        attempt="0-0",
        has_store=False,
    )


@pytest.mark.parametrize(
    ("said", "has_store"), [("True", True), ("False", False), ("1", False), ("", False)]
)
def test_whose_store_it_is(said, has_store):
    """torchrun writes ``str(bool)``."""
    launch = Launch.of({**PLAIN, "TORCHELASTIC_USE_AGENT_STORE": said})
    assert launch.has_store is has_store


def test_starts_on_one_port_are_told_apart():
    starts = [
        Launch.of({**PLAIN, "TORCHELASTIC_RUN_ID": name, "TORCHELASTIC_RESTART_COUNT": count})
        for name in ("a", "b")
        for count in ("0", "1")
    ]
    assert len({start.attempt for start in starts}) == 4


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("WORLD_SIZE", {**PLAIN, "WORLD_SIZE": ""}),
        ("MASTER_ADDR", {**PLAIN, "MASTER_ADDR": ""}),
        ("MASTER_ADDR", without("MASTER_ADDR")),
        ("MASTER_PORT", {**PLAIN, "MASTER_PORT": ""}),
        ("MASTER_PORT", without("MASTER_PORT")),
    ],
)
def test_what_is_missing_is_named(name, environment):
    with pytest.raises(RequestError, match=rf"lacks {name}: a launcher sets RANK, WORLD_SIZE"):
        Launch.of(environment)


def test_all_that_is_missing_is_named_at_once():
    with pytest.raises(RequestError) as refused:
        Launch.of(without("MASTER_ADDR", "MASTER_PORT"))
    assert "has RANK, WORLD_SIZE and lacks MASTER_ADDR, MASTER_PORT" in str(refused.value)
    assert "unset them all to run alone" in str(refused.value)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["two", "1.5", "0x2", "1 2"])
def test_no_numbers(name, text):
    with pytest.raises(RequestError, match=rf"{name} is '{text}', which is no number"):
        Launch.of({**PLAIN, name: text})


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("-1", "2"), ("8", "4")])
def test_ranks_beyond_the_processes(rank, size):
    with pytest.raises(RequestError) as refused:
        Launch.of({**PLAIN, "RANK": rank, "WORLD_SIZE": size})
    assert f"RANK {rank} with WORLD_SIZE {size}: needs 0 to {int(size) - 1}" in str(refused.value)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("255.255.255.255", "Permission denied"),
        ("no such host", "Name or service not known"),
        ("::1", "Address family for hostname not supported"),
    ],
)
def test_a_machine_that_no_route_leads_to(host, why):
    with pytest.raises(RequestError) as refused:
        Launch.of({**PLAIN, "MASTER_ADDR": host})
    assert f"MASTER_ADDR {host!r} cannot be reached: {why}" in str(refused.value)
    assert "the machine with RANK 0" in str(refused.value)


def test_names_have_routes_too():
    launch = Launch.of({**PLAIN, "MASTER_ADDR": "localhost"})
    assert (launch.host, launch.address) == ("localhost", "127.0.0.1")


def test_an_address_that_is_given_is_not_looked_for():
    launch = Launch.of({**PLAIN, "MASTER_ADDR": "no such host"}, address="10.0.0.7")
    assert launch.address == "10.0.0.7"


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_processes_host_as_many_ranks_in_order(processes):
    hosted = [hosted_ranks(8, process, processes) for process in range(processes)]
    assert [rank for ranks in hosted for rank in ranks] == list(range(8))
    assert {len(ranks) for ranks in hosted} == {8 // processes}


@pytest.mark.parametrize(
    ("ranks", "processes", "fitting"),
    [
        (8, 3, "1, 2, 4, 8"),
        (8, 16, "1, 2, 4, 8"),
        (6, 4, "1, 2, 3, 6"),
        (1, 2, "1"),
    ],
)
def test_counts_that_do_not_fit(ranks, processes, fitting):
    with pytest.raises(RequestError) as refused:
        hosted_ranks(ranks, 0, processes)
    assert f"{processes} processes for {ranks} ranks" in str(refused.value)
    assert f"; {fitting} processes would work" in str(refused.value)


@pytest.mark.parametrize(
    ("ranks", "text"), [((0,), "rank 0"), ((3, 4), "ranks 3-4"), ((4, 5, 6, 7), "ranks 4-7")]
)
def test_ranks_for_people(ranks, text):
    assert named(ranks) == text


@pytest.mark.parametrize(
    ("interface", "address"),
    [("lo", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")],
)
def test_interfaces_and_addresses(interface, address):
    assert interface_address(interface) == address


@pytest.mark.parametrize("interface", ["none0", "", "longer-than-any-interface", "10.1.2.3.4"])
def test_interfaces_that_there_are_not(interface):
    with pytest.raises(RequestError) as refused:
        interface_address(interface)
    told = str(refused.value)
    assert told.startswith(f"interface {interface!r}: No such device; this machine has ")
    assert "lo" in told.partition("has ")[2].split(", ")
