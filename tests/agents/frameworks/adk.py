"""An agent of Google's ADK with a shell: `adk.py MODEL PROMPT RUNS`. All runs are at once, over one client."""

import asyncio
import subprocess
import sys

from google.adk.agents import Agent
from google.adk.runners import InMemoryRunner
from google.genai import types


def bash(command: str) -> str:
    """Runs a shell command and returns its output."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


async def run(runner, prompt):
    session = await runner.session_service.create_session(app_name="demo", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=prompt)])
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content:
            print("".join(part.text or "" for part in event.content.parts))


async def main(model, prompt, runs):
    agent = Agent(name="engineer", model=model, instruction="You answer questions about a project.", tools=[bash])
    runner = InMemoryRunner(agent=agent, app_name="demo")
    await asyncio.gather(*(run(runner, prompt) for _ in range(int(runs))))


asyncio.run(main(*sys.argv[1:]))
