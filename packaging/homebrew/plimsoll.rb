class Plimsoll < Formula
  desc "@SUMMARY@"
  homepage "https://github.com/@REPOSITORY@"
  version "@VERSION@"
  license "Apache-2.0"

  on_macos do
    on_arm do
      url "https://github.com/@REPOSITORY@/releases/download/v@VERSION@/plimsoll-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256_AARCH64_DARWIN@"
    end
  end

  on_linux do
    on_intel do
      url "https://github.com/@REPOSITORY@/releases/download/v@VERSION@/plimsoll-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256_X86_64_LINUX@"
    end
    on_arm do
      url "https://github.com/@REPOSITORY@/releases/download/v@VERSION@/plimsoll-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256_AARCH64_LINUX@"
    end
  end

  def install
    bin.install "plimsoll"
    man1.install "plimsoll.1"
    bash_completion.install "completions/plimsoll.bash" => "plimsoll"
    zsh_completion.install "completions/plimsoll.zsh" => "_plimsoll"
    fish_completion.install "completions/plimsoll.fish"
  end

  service do
    run [opt_bin/"plimsoll", "serve"]
    keep_alive true
    log_path var/"log/plimsoll.log"
    error_log_path var/"log/plimsoll.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/plimsoll --version")
    system bin/"plimsoll", "check"
  end
end
