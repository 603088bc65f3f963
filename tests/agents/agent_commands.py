"""The command line of each agent: it sends a prompt, with files, and begins a session or continues it."""

import base64
import json
import mimetypes
import secrets

from workspace import NPM_BIN


def dummy_key():
    return f"sk-dummy-{secrets.token_hex(8)}"


class Codex:
    """Codex, over HTTP."""

    model = "gpt-5.5"

    def __init__(self, workspace):
        self.workspace = workspace

    def command(self, base, prompt, resume, files, model, key):
        provider = f'[model_providers.local]\nname = "local"\nbase_url = "{base}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"\nrequest_max_retries = 0\nstream_max_retries = 0'
        self.workspace.write(".codex/config.toml", f'model = "{model}"\nmodel_provider = "local"\n{provider}\n[projects."{self.workspace.project}"]\ntrust_level = "trusted"\n')
        flags = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
        resume_args = ["resume", "--last"] if resume else []
        picture_args = [word for file in files for word in ("-i", file)]
        return [NPM_BIN / "codex", "exec", *flags, *resume_args, *picture_args, "--", prompt], {"LOCAL_KEY": key}, ""


class Opencode:
    provider, model = "anthropic", "claude-sonnet-4-6"
    max_output = 32_000
    env = {}
    options = {}

    def __init__(self, workspace):
        self.workspace = workspace

    def command(self, base, prompt, resume, files, model, key):
        provider, model = model.split("/") if "/" in model else (self.provider, model)
        limit = {"context": 200_000, "output": self.max_output}
        modalities = {"input": ["text", "image", "pdf"], "output": ["text"]}
        model_config = {"name": "Demo", "options": self.options, "attachment": True, "reasoning": True, "tool_call": True, "modalities": modalities, "limit": limit}
        options = {"baseURL": f"{base}/v1", "apiKey": key}
        config = {
            "autoupdate": False, "share": "disabled", "permission": {"bash": "allow", "edit": "allow"},
            "provider": {provider: {"models": {model: model_config}, "options": options}},
        }
        self.workspace.write(".config/opencode/opencode.json", json.dumps(config))
        resume_args = ["-c"] if resume else []
        file_args = [word for file in files for word in ("-f", file)]
        return [NPM_BIN / "opencode", "run", *resume_args, "-m", f"{provider}/{model}", prompt, *file_args], self.env, ""


class OpencodeThinking(Opencode):
    max_output = 16_000
    options = {"thinking": {"type": "enabled", "budgetTokens": 4_000}}


class OpencodeResponses(Opencode):
    provider, model = "openai", "gpt-5.5"


class Gemini:
    model = "gemini-2.5-pro"

    def __init__(self, workspace):
        self.workspace = workspace

    def command(self, base, prompt, resume, files, model, key):
        self.workspace.write(".gemini/settings.json", '{"security":{"auth":{"selectedType":"gemini-api-key"},"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},"general":{"disableAutoUpdate":true}}')
        resume_args = ["--resume", "latest"] if resume else []
        file_args = "".join(f" @{file}" for file in files)
        env = {"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": base}
        return [NPM_BIN / "gemini", "--yolo", "-m", model, *resume_args, "-p", prompt + file_args], env, ""


class ClaudeCode:
    """Claude Code. Files are sent as JSON on standard input, as programs that embed it do."""

    model = "claude-sonnet-4-6"
    env = {}

    def __init__(self, workspace):
        self.workspace = workspace

    def command(self, base, prompt, resume, files, model, key):
        resume_args = ["--continue"] if resume else []
        env = self.env | {
            "ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": key, "DISABLE_TELEMETRY": 1, "DISABLE_AUTOUPDATER": 1,
            "DISABLE_ERROR_REPORTING": 1, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": 1,
        }
        args = [NPM_BIN / "claude", "-p", "--model", model, "--allowedTools", "Bash", *resume_args]
        if not files:
            return [*args, "--", prompt], env, ""
        content = [self.block(file) for file in files] + [{"type": "text", "text": prompt}]
        message = {"type": "user", "message": {"role": "user", "content": content}}
        json_args = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        return [*args, *json_args], env, json.dumps(message) + "\n"

    def block(self, file):
        media_type = mimetypes.guess_type(file)[0]
        data = base64.b64encode((self.workspace.project / file).read_bytes()).decode()
        return {"type": "image" if media_type.startswith("image") else "document", "source": {"type": "base64", "media_type": media_type, "data": data}}


class Session:
    """One agent's session: it begins with the first prompt. It has a key of its own, so that Plimsoll does not take
    another test's session with the same text for an earlier part of it."""

    def __init__(self, agent, base):
        self.agent, self.base = agent, base
        self.key = dummy_key()
        self.model = agent.model
        self.has_begun = False

    def ask(self, prompt, *files):
        return self.run(self.agent.workspace.run_unchecked, prompt, files)

    def ask_and_kill(self, prompt, *files):
        self.run(self.agent.workspace.run_and_kill, prompt, files)

    def run(self, runner, prompt, files):
        command, env, stdin = self.agent.command(self.base, prompt, self.has_begun, files, self.model, self.key)
        self.has_begun = True
        return runner(*command, stdin=stdin, **env)
