{
  description = "@SUMMARY@";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
  outputs = { self, nixpkgs }:
    let
      version = "@VERSION@";
      archives = {
        x86_64-linux = { target = "x86_64-unknown-linux-musl"; sha256 = "@SHA256_X86_64_LINUX@"; };
        aarch64-linux = { target = "aarch64-unknown-linux-musl"; sha256 = "@SHA256_AARCH64_LINUX@"; };
        aarch64-darwin = { target = "aarch64-apple-darwin"; sha256 = "@SHA256_AARCH64_DARWIN@"; };
      };
    in {
      packages = builtins.mapAttrs (system: archive: {
        default = nixpkgs.legacyPackages.${system}.stdenvNoCC.mkDerivation {
          pname = "plimsoll";
          inherit version;
          src = nixpkgs.legacyPackages.${system}.fetchurl {
            url = "https://github.com/@REPOSITORY@/releases/download/v${version}/plimsoll-${version}-${archive.target}.tar.gz";
            inherit (archive) sha256;
          };
          installPhase = ''
            install -Dm755 plimsoll $out/bin/plimsoll
            install -Dm644 plimsoll.1 $out/share/man/man1/plimsoll.1
            install -Dm644 completions/plimsoll.bash $out/share/bash-completion/completions/plimsoll
            install -Dm644 completions/plimsoll.zsh $out/share/zsh/site-functions/_plimsoll
            install -Dm644 completions/plimsoll.fish $out/share/fish/vendor_completions.d/plimsoll.fish
          '';
          meta.mainProgram = "plimsoll";
        };
      }) archives;
    };
}
