# One static binary in an empty image.
#
#   docker build -t plimsoll:0.1.0 .
#   docker run --name plimsoll --read-only --stop-timeout 40 -v plimsoll:/data -p 127.0.0.1:8787:8787 plimsoll:0.1.0
#   docker exec plimsoll /plimsoll top
#
# The stop time-out is longer than limits.drain_s, so that streams can finish; Docker's own is 10 s.
#
# Where the binary was already built on the host (`make image` does so), the build stage is left out:
#   docker build --build-arg SOURCE=prebuilt -t plimsoll:0.1.0 .

ARG SOURCE=build

# By digest: what a tag names can change. To take a newer one, change both
# (`docker buildx imagetools inspect rust:1.95-slim-bookworm` prints the digest).
FROM docker.io/library/rust:1.95-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ENV RUSTFLAGS="-C target-feature=+crt-static" TARGET_DIR=/target
# What --version says: --build-arg PLIMSOLL_VERSION="$(scripts/version)". Without it, the version alone.
ARG PLIMSOLL_VERSION
# Dependencies stay in the caches from one build to the next; the binary leaves them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/target \
    target=$(rustc --print host-tuple) \
    && cargo build --locked --profile dist --bin plimsoll --target "$target" --target-dir "$TARGET_DIR" \
    && mkdir -p /out/program /out/volume/data \
    && cp "$TARGET_DIR/$target/dist/plimsoll" /out/program/plimsoll

FROM scratch AS prebuilt
COPY target/image/ /out/

# The default stands here, too: older buildah and podman (1.28, 4.3) leave out a stage that only the default
# of an ARG names, and look for an image called `build`.
FROM ${SOURCE:-build} AS source

FROM scratch
# The program is root's: who runs it cannot change it. Only its data is its own.
COPY --from=source /out/program/ /
# Numbers, not names: there is no /etc/passwd, and Kubernetes can see that this is not root.
COPY --from=source --chown=65532:65532 /out/volume/ /
USER 65532:65532
# Clients reach a container from outside it. The admin listener stays on its loopback; to publish it,
# set PLIMSOLL_ADMIN=0.0.0.0:9797 and a token (PLIMSOLL_ADMIN_TOKEN=env:… or file:…).
ENV PLIMSOLL_LISTEN=0.0.0.0:8787 PLIMSOLL_DATA=/data
VOLUME /data
EXPOSE 8787
STOPSIGNAL SIGTERM
ENTRYPOINT ["/plimsoll"]
CMD ["serve"]
