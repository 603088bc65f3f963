"""How each agent is asked: a prompt, with files, that begins a session or continues it."""

import base64
import json
import mimetypes
import secrets

from place import NPM


def dummy_key():
    return f"sk-dummy-{secrets.token_hex(8)}"


class Codex:
    """Over HTTP."""

    model = "gpt-5.5"

    def __init__(self, place):
        self.place = place

    def command(self, base, prompt, resume, files, model, key):
        provider = f'[model_providers.local]\nname = "local"\nbase_url = "{base}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"\nrequest_max_retries = 0\nstream_max_retries = 0'
        self.place.write(".codex/config.toml", f'model = "{model}"\nmodel_provider = "local"\n{provider}\n[projects."{self.place.project}"]\ntrust_level = "trusted"\n')
        flags = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
        resumes = ["resume", "--last"] if resume else []
        pictures = [word for file in files for word in ("-i", file)]
        return [NPM / "codex", "exec", *flags, *resumes, *pictures, "--", prompt], {"LOCAL_KEY": key}, ""


class Opencode:
    provider, model = "anthropic", "claude-sonnet-4-6"

    def __init__(self, place):
        self.place = place

    def command(self, base, prompt, resume, files, model, key):
        provider, model = model.split("/") if "/" in model else (self.provider, model)
        limit = {"context": 200_000, "output": self.output}
        modalities = {"input": ["text", "image", "pdf"], "output": ["text"]}
        kind = {"name": "Demo", "options": self.options, "attachment": True, "reasoning": True, "tool_call": True, "modalities": modalities, "limit": limit}
        options = {"baseURL": f"{base}/v1", "apiKey": key}
        config = {
            "autoupdate": False, "share": "disabled", "permission": {"bash": "allow", "edit": "allow"},
            "provider": {provider: {"models": {model: kind}, "options": options}},
        }
        self.place.write(".config/opencode/opencode.json", json.dumps(config))
        resumes = ["-c"] if resume else []
        attached = [word for file in files for word in ("-f", file)]
        return [NPM / "opencode", "run", *resumes, "-m", f"{provider}/{model}", prompt, *attached], self.env, ""

    output = 32_000
    env = {}
    options = {}


class OpencodeThinking(Opencode):
    output = 16_000
    options = {"thinking": {"type": "enabled", "budgetTokens": 4_000}}


class OpencodeResponses(Opencode):
    provider, model = "openai", "gpt-5.5"


class Gemini:
    model = "gemini-2.5-pro"

    def __init__(self, place):
        self.place = place

    def command(self, base, prompt, resume, files, model, key):
        self.place.write(".gemini/settings.json", '{"security":{"auth":{"selectedType":"gemini-api-key"},"folderTrust":{"enabled":false}},"privacy":{"usageStatisticsEnabled":false},"general":{"disableAutoUpdate":true}}')
        resumes = ["--resume", "latest"] if resume else []
        shown = "".join(f" @{file}" for file in files)
        env = {"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": base}
        return [NPM / "gemini", "--yolo", "-m", model, *resumes, "-p", prompt + shown], env, ""


class ClaudeCode:
    """Pictures come as a program that embeds it sends them."""

    model = "claude-sonnet-4-6"
    env = {}

    def __init__(self, place):
        self.place = place

    def command(self, base, prompt, resume, files, model, key):
        resumes = ["--continue"] if resume else []
        env = self.env | {
            "ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": key, "DISABLE_TELEMETRY": 1, "DISABLE_AUTOUPDATER": 1,
            "DISABLE_ERROR_REPORTING": 1, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": 1,
        }
        words = [NPM / "claude", "-p", "--model", model, "--allowedTools", "Bash", *resumes]
        if not files:
            return [*words, "--", prompt], env, ""
        content = [self.block(file) for file in files] + [{"type": "text", "text": prompt}]
        message = {"type": "user", "message": {"role": "user", "content": content}}
        streamed = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        return [*words, *streamed], env, json.dumps(message) + "\n"

    def block(self, file):
        kind = mimetypes.guess_type(file)[0]
        data = base64.b64encode((self.place.project / file).read_bytes()).decode()
        return {"type": "image" if kind.startswith("image") else "document", "source": {"type": "base64", "media_type": kind, "data": data}}


class Session:
    """One agent's session: it begins with the first prompt. Its key is nobody else's: what another session has said
    in the same words is not its past."""

    def __init__(self, driver, base):
        self.driver, self.base = driver, base
        self.key = dummy_key()
        self.model = driver.model
        self.begun = False

    def ask(self, prompt, *files):
        return self.play(self.driver.place.tried, prompt, files)

    def ask_and_kill(self, prompt, *files):
        self.play(self.driver.place.killed, prompt, files)

    def play(self, how, prompt, files):
        command, env, stdin = self.driver.command(self.base, prompt, self.begun, files, self.model, self.key)
        self.begun = True
        return how(*command, stdin=stdin, **env)
