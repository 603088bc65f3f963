"""An agent of CrewAI with a shell: `crew.py MODEL PROMPT`."""

import subprocess
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("bash")
def bash(command: str) -> str:
    """Runs a shell command and returns its output."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


model, prompt = sys.argv[1:]
agent = Agent(
    role="Engineer", goal="Answer questions about a project", backstory="You know builds.", tools=[bash],
    llm=LLM(model=f"openai/{model}"), max_iter=100, allow_delegation=False,
)
task = Task(description=prompt, expected_output="One sentence", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff())
