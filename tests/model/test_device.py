from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bgad.errors import ConfigError
from bgad.model import device as devices


def cores_of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_the_cores_of_one_thread_are_its_own() -> None:
    before, initial = torch.get_num_threads(), cores_of_a_new_thread()
    cores: list[int] = []

    def work(count: int) -> None:
        devices.set_thread_cores(count)
        cores.append(torch.get_num_threads())

    for count in (initial + 1, initial + 2):
        thread = threading.Thread(target=work, args=(count,))
        thread.start()
        thread.join()
    assert cores == [initial + 1, initial + 2]
    assert torch.get_num_threads() == before
    assert cores_of_a_new_thread() == initial


def test_workers_use_one_core_each_and_change_no_other_thread() -> None:
    before, initial = torch.get_num_threads(), cores_of_a_new_thread()
    workers = devices.WorkerPool(3, torch.device("cpu"))
    assert workers.each(lambda i: (i, torch.get_num_threads())) == [(0, 1), (1, 1), (2, 1)]
    assert list(workers.stream(lambda text: text.upper(), "abc")) == ["A", "B", "C"]
    assert (torch.get_num_threads(), cores_of_a_new_thread()) == (before, initial)


def test_an_unusable_device_is_one_line() -> None:
    assert devices.pick("cpu").type == "cpu"
    with pytest.raises(ConfigError, match=r"^device 'abacus' is not usable here: choose auto or cpu, [a-z ]+$"):
        devices.pick("abacus")
