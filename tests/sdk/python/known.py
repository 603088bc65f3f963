"""What the admin API has to know after a conversation."""

import json
import threading

from house import until


# How far an anchored estimate may be off, as a share of the input, by how what is new was counted: with the
# right vocabulary; with a ratio of it, for tokenizers that are not public; by length, before it is loaded.
WITHIN = {"exact": 0.01, "ratio": 0.1, "length": 0.5}


class Told:
    """Listens to the live events from its making on."""

    def __init__(self, house):
        self.house = house
        self.events = []
        stream = house.open("/api/v1/events", timeout=None)
        # The first line says that the listener is on.
        stream.readline()
        threading.Thread(target=self.listen, args=(stream,), daemon=True).start()

    def listen(self, stream):
        try:
            for line in stream:
                if line.startswith(b"data:"):
                    self.events.append(json.loads(line[5:]))
        except OSError:
            pass

    def next(self):
        """The oldest exchange that was not asked for yet."""
        until("an exchange told of", lambda: self.events)
        return self.events.pop(0)

    def check(self, calls, model):
        """Compares what the SDK was told with what the proxy tells of the same calls."""
        until(f"{len(calls)} exchanges told of", lambda: len(self.events) >= len(calls))
        told, self.events = self.events, []
        # What a slow disk commits late is told after the next one.
        told.sort(key=lambda event: event["id"])
        for at, (call, event) in enumerate(zip(calls, told, strict=True)):
            where = f"call {at}: {event}"
            assert (event["outcome"], event["purpose"], event["model"]) == ("complete", "turn", model), where
            assert (event["usage"]["input"], event["usage"]["output"]) == (call.input, call.output), where
            # A disk that is slow for a moment makes a commit late; that is told, and harms nobody.
            assert set(event["fail_open"]) <= {"commit_late"} and event["notes"] == [], where
            estimate = event["estimate"]
            assert estimate["method"] == ("anchored" if at else "estimated"), where
            assert event["error"] == estimate["tokens"] - call.input, where
            assert at == 0 or abs(event["error"]) <= max(40, call.input * WITHIN[estimate["counting"]]), where
        assert len({event["thread"] for event in told}) == 1, f"one conversation, one thread: {told}"
        self.check_session(told[0]["tenant"] + "." + told[0]["session"], calls)

    def check_session(self, session, calls):
        """The same, from what is kept."""
        kept = self.house.asked(f"/api/v1/sessions/{session}")
        thread, = kept["threads"]
        assert thread["turns"] == len(calls), kept
        assert thread["measured"]["actual"] == calls[-1].input, kept
        assert kept["totals"]["input"] == sum(call.input for call in calls), kept
        context = self.house.asked(f"/api/v1/sessions/{session}/threads/{thread['id']}/context")
        assert context["total"] + context["basis"]["gone"] >= calls[-1].input, context
