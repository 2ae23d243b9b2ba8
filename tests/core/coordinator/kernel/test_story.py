"""The story of a job: its last transitions with their causes, in the status and for those who wait."""

from __future__ import annotations

from tests.core.machines import Coordinator, job, sent
from zmqps.core.coordinator.kernel.story import MAX_CHARS, MAX_ENTRIES, MAX_LAST_CHARS, Story
from zmqps.core.protocol.messages import Arrive, Waiting


def texts(coordinator: Coordinator) -> list[str]:
    status = coordinator.machine.status(coordinator.now)
    return [entry["text"] for entry in status["jobs"]["default"]["story"]]


def test_a_story_has_bounds() -> None:
    story = Story("a")
    for number in range(MAX_ENTRIES + 5):
        story.tell(f"{number:03}" + "x" * 1000)
        story.settle(float(number))
    entries = story.status(100.0)
    assert [entry["text"][:3] for entry in entries] == [f"{n:03}" for n in range(5, MAX_ENTRIES + 5)]
    assert [entry["ago_s"] for entry in entries] == [100.0 - n for n in range(5, MAX_ENTRIES + 5)]
    assert {len(entry["text"]) for entry in entries} == {MAX_CHARS}
    assert len(story.explain("")) <= MAX_LAST_CHARS + len("; before that: ")


def test_what_is_logged_of_a_job_is_part_of_its_story() -> None:
    story = Story("a")
    log = story.log("warning", "shard 1 goes back", "fallback", "Z001")
    assert (log.text, log.job, log.kind, log.error) == ("job 'a': shard 1 goes back", "a", "fallback", "Z001")
    story.settle(1.0)
    assert story.status(3.0) == [{"ago_s": 2.0, "text": "shard 1 goes back"}]


def test_those_who_wait_are_not_told_that_a_job_has_begun() -> None:
    story = Story("a")
    story.tell("can be trained", expected=True)
    assert story.explain("worker 1") == "worker 1"
    story.tell("server 0 has left")
    assert story.explain("worker 1") == "worker 1; before that: server 0 has left"


def test_a_job_tells_that_it_begins_and_whose_loss_it_has_survived() -> None:
    coordinator = Coordinator.trains("s0", "s1", "w0", "w1", servers=2, replicas=1)
    assert [text.split(" on ")[0] for text in texts(coordinator)] == ["begins", "can be trained"]
    actions = coordinator.wait(15.0, "s0", "w0", "w1")
    promoted = coordinator.promoted(actions)
    coordinator.follow(promoted)
    assert [text.partition(" (")[0] for text in texts(coordinator)][2:4] == ["server 1", "server 0"]
    assert "has left" in texts(coordinator)[2]
    assert "takes over shard 1" in texts(coordinator)[3]


def test_who_waits_is_told_what_came_before() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1", "w2")
    for name in ("w0", "w1", "w2"):
        coordinator.init(name, job(mode="sync"))
    coordinator.ready("s0", loaded=False)
    coordinator.ready("s0")
    coordinator.take("w0", Arrive(7, 0, (1,)))
    actions = coordinator.wait(15.0, "s0", "w0", "w1")  # w2 is silent
    told = [message.text for message in sent(actions, Waiting)]
    assert told
    assert any("before that: worker 2" in text and text.endswith("has left (lost)") for text in told)
