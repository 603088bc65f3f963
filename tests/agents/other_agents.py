"""The command lines of agents that only `pays.py` plays: each sends one prompt to a base URL and works until it is done."""

import json
import pathlib

from workspace import AGENTS, NPM_BIN

FRAMEWORKS = pathlib.Path(__file__).resolve().parent / "frameworks"


class OneShot:
    """An agent that only begins sessions."""

    model = "claude-sonnet-4-6"

    def __init__(self, workspace):
        self.workspace = workspace


class Copilot(OneShot):
    def command(self, base, prompt, resume, files, model, key):
        env = {"COPILOT_PROVIDER_BASE_URL": base, "COPILOT_PROVIDER_TYPE": "anthropic", "COPILOT_PROVIDER_API_KEY": key, "COPILOT_MODEL": model}
        return [NPM_BIN / "copilot", "--allow-all-tools", "--disable-client-telemetry", "-p", prompt], env, ""


class Pi(OneShot):
    def command(self, base, prompt, resume, files, model, key):
        self.workspace.write(".pi/agent/models.json", json.dumps({"providers": {"anthropic": {"baseUrl": base}}}))
        return [NPM_BIN / "pi", "--offline", "--provider", "anthropic", "--model", model, "-p", prompt], {"ANTHROPIC_API_KEY": key}, ""


class Kimi(OneShot):
    def command(self, base, prompt, resume, files, model, key):
        provider = f'[providers.local]\ntype = "anthropic"\nbase_url = "{base}"\napi_key = "{key}"\n'
        model_config = f'[models.local]\nprovider = "local"\nmodel = "{model}"\nmax_context_size = 200000\n'
        self.workspace.write(".kimi-code/config.toml", f'default_model = "local"\n{provider}{model_config}')
        return [NPM_BIN / "kimi", "-p", prompt], {}, ""


class Qwen(OneShot):
    """Over Chat Completions."""

    model = "gpt-4.1"

    def command(self, base, prompt, resume, files, model, key):
        env = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{base}/v1", "OPENAI_MODEL": model}
        return [NPM_BIN / "qwen", "--yolo", "--auth-type", "openai", "-p", prompt], env, ""


class Cline(OneShot):
    def command(self, base, prompt, resume, files, model, key):
        settings = {"provider": "anthropic", "apiKey": key, "model": model, "baseUrl": f"{base}/v1"}
        provider = {"settings": settings, "updatedAt": "2026-11-27T00:00:00.000Z", "tokenSource": "manual"}
        providers = {"version": 1, "lastUsedProvider": "anthropic", "modes": {}, "providers": {"anthropic": provider}}
        self.workspace.write(".cline/data/settings/providers.json", json.dumps(providers))
        return [NPM_BIN / "cline", "-P", "anthropic", "-m", model, "--json", prompt], {}, ""


class Droid(OneShot):
    def command(self, base, prompt, resume, files, model, key):
        custom = {"model": model, "displayName": "Local", "baseUrl": base, "apiKey": key, "provider": "anthropic", "maxOutputTokens": 16000}
        self.workspace.write(".factory/settings.json", json.dumps({"customModels": [custom]}))
        args = ["exec", "--skip-permissions-unsafe", "-m", "custom:Local-0", prompt]
        return [NPM_BIN / "droid", *args], {"FACTORY_API_KEY": key, "DROID_DISABLE_AUTO_UPDATE": 1}, ""


class Hermes(OneShot):
    def command(self, base, prompt, resume, files, model, key):
        env = {"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": base}
        args = ["chat", "--yolo", "--quiet", "--provider", "anthropic", "-m", model, "-q", prompt]
        return [AGENTS / "hermes/bin/hermes", *args], env, ""


class DeepAgents(OneShot):
    def command(self, base, prompt, resume, files, model, key):
        env = {"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": base, "DEEPAGENTS_CODE_AUTO_UPDATE": 0}
        args = ["-M", f"anthropic:{model}", "--no-mcp", "-S", "all", "-n", prompt]
        return [AGENTS / "deepagents/bin/dcode", *args], env, ""


class CrewAi(OneShot):
    """Over Chat Completions."""

    model = "gpt-4.1"
    runs = 1

    def command(self, base, prompt, resume, files, model, key):
        env = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{base}/v1", "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
        return [AGENTS / "crewai/bin/python", FRAMEWORKS / "crew.py", model, prompt, self.runs], env, ""


class Adk(OneShot):
    model = "gemini-2.5-pro"
    runs = 1

    def command(self, base, prompt, resume, files, model, key):
        env = {"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": base}
        return [AGENTS / "adk/bin/python", FRAMEWORKS / "adk.py", model, prompt, self.runs], env, ""


class CrewAiTwins(CrewAi):
    """Two runs in one process, over one pool of connections."""

    runs = 2


class AdkTwins(Adk):
    runs = 2
