//! The provider of the tests of SDKs and agents: the demo's script, and refusals as real providers have them.
//!
//! `strict-provider ADDRESS` has limits that a test reaches without sending megabytes; `strict-provider ADDRESS WINDOW`
//! has usual ones, and a window of so many tokens.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's program")]

use std::net::SocketAddr;

use scripted_provider::ScriptedProvider;
use scripted_provider::strict::{Rules, StrictProvider};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let address: SocketAddr = arguments.next().unwrap().parse().unwrap();
    let rules = match arguments.next() {
        Some(window) => Rules { window: Some(window.parse().unwrap()), ..Rules::default() },
        None => Rules {
            max_image_bytes: 64 * 1024,
            max_images: 20,
            max_request_bytes: 1024 * 1024,
            max_output_tokens: Some(32_768),
            ..Rules::default()
        },
    };
    let judge = Box::new(StrictProvider::new(rules, 0));
    let provider =
        ScriptedProvider::judged(address, plimsoll::demo::count_tokens, judge).await.unwrap();
    println!("strict provider on http://{}", provider.address());
    std::future::pending::<()>().await;
}
