"""Compares what the admin API reports about a conversation with what the SDK received."""

import json
import threading

from stack import wait_for

# The largest error of an anchored estimate, as a share of the input, by how the new text was counted: with the model's
# own vocabulary; with another one and a ratio, because the tokenizer is not public; by its length, because no
# vocabulary is loaded yet.
MAX_ERROR = {"exact": 0.01, "ratio": 0.1, "length": 0.5}


class ExchangeEvents:
    """Collects the live events of the admin API, one for each exchange, from its creation on."""

    def __init__(self, stack):
        self.stack = stack
        self.events = []
        stream = stack.get("/api/v1/events", timeout=None)
        # Once the first line is here, no later event is missed.
        stream.readline()
        threading.Thread(target=self.listen, args=(stream,), daemon=True).start()

    def listen(self, stream):
        # The stream has other events, too: what is queued, pruned or compacted.
        kind = None
        try:
            for line in stream:
                if line.startswith(b"event:"):
                    kind = line[6:].strip()
                elif line.startswith(b"data:") and kind == b"exchange":
                    self.events.append(json.loads(line[5:]))
        except OSError:
            pass

    def next(self):
        """Waits for the next event, and removes it."""
        wait_for("an exchange event", lambda: self.events)
        return self.events.pop(0)

    def check(self, calls, model):
        """Compares each call as the SDK received it with its event."""
        wait_for(f"{len(calls)} exchange events", lambda: len(self.events) >= len(calls))
        events, self.events = self.events, []
        # If the disk is slow and a turn is committed late, its event comes after the next one.
        events.sort(key=lambda event: event["id"])
        for index, (call, event) in enumerate(zip(calls, events, strict=True)):
            where = f"call {index}: {event}"
            assert (event["outcome"], event["purpose"], event["model"]) == ("complete", "turn", model), where
            assert (event["usage"]["input"], event["usage"]["output"]) == (call.input, call.output), where
            # A slow disk makes a commit late. That is reported, and is no fault.
            assert set(event["fail_open"]) <= {"commit_late"} and event["notes"] == [], where
            estimate = event["estimate"]
            assert estimate["method"] == ("anchored" if index else "estimated"), where
            assert event["error"] == estimate["tokens"] - call.input, where
            assert index == 0 or abs(event["error"]) <= max(40, call.input * MAX_ERROR[estimate["counting"]]), where
        assert len({event["thread"] for event in events}) == 1, f"one conversation must be one thread: {events}"
        self.check_session(events[0]["tenant"] + "." + events[0]["session"], calls)

    def check_session(self, session_id, calls):
        """Compares the calls with the stored session."""
        session = self.stack.get_json(f"/api/v1/sessions/{session_id}")
        thread, = session["threads"]
        assert thread["turns"] == len(calls), session
        assert thread["measured"]["actual"] == calls[-1].input, session
        assert session["totals"]["input"] == sum(call.input for call in calls), session
        context = self.stack.get_json(f"/api/v1/sessions/{session_id}/threads/{thread['id']}/context")
        assert context["total"] + context["basis"]["gone"] >= calls[-1].input, context
