//! Sessions whose provider writes their summaries: what the model thought in the turns that stay is
//! valid for ever, although it is bound to what stood before it (`docs/protocols.md` 1.5.7).

use plimsoll::context::policy::SummaryEngine;

use crate::endless::{WINDOW, session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_thought_in_kept_turns_stays_valid() {
    let (one, two) = tokio::join!(
        session(0, 40, SummaryEngine::Provider), // Anthropic
        session(1, 40, SummaryEngine::Auto),     // Responses
    );
    for lived in [one.unwrap(), two.unwrap()] {
        println!("{lived:?}");
        assert!(lived.used > 0 && lived.by_provider >= lived.used, "{lived:?}");
        assert_eq!(lived.asked, lived.by_provider, "the model itself was not asked");
        assert_eq!((lived.taught, lived.dropped, lived.absent), (0, 0, 0), "{lived:?}");
        assert!(lived.largest <= WINDOW, "{lived:?}");
    }
}
