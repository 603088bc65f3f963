"""An agent of CrewAI with a shell: `crew.py MODEL PROMPT RUNS`. All runs are at once, over one client."""

import concurrent.futures
import subprocess
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("bash")
def bash(command: str) -> str:
    """Runs a shell command and returns its output."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def run(llm, prompt):
    agent = Agent(
        role="Engineer", goal="Answer questions about a project", backstory="You know builds.", tools=[bash],
        llm=llm, max_iter=100, allow_delegation=False,
    )
    task = Task(description=prompt, expected_output="One sentence", agent=agent)
    return Crew(agents=[agent], tasks=[task]).kickoff()


model, prompt, runs = sys.argv[1:]
llm = LLM(model=f"openai/{model}")
with concurrent.futures.ThreadPoolExecutor() as pool:
    for answer in [pool.submit(run, llm, prompt) for _ in range(int(runs))]:
        print(answer.result())
