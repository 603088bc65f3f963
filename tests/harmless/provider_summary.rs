//! Sessions whose provider writes their summaries: what the model thought in the turns that stay is
//! valid for ever, although it is bound to what stood before it (`docs/protocols.md` 1.5.7).

use plimsoll::context::policy::SummaryEngine;

use crate::endless::{WINDOW, session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_after_provider_summary_stays_valid() {
    let (one, two) = tokio::join!(
        session(0, 40, SummaryEngine::Provider), // Anthropic
        session(1, 40, SummaryEngine::Auto),     // Responses
    );
    for report in [one.unwrap(), two.unwrap()] {
        println!("{report:?}");
        assert!(report.summaries_used > 0, "{report:?}");
        assert!(report.provider_summaries >= report.summaries_used, "{report:?}");
        assert_eq!(
            report.summaries_requested, report.provider_summaries,
            "the model itself was not asked"
        );
        assert_eq!(report.binding_refusals, 0, "{report:?}");
        assert_eq!(report.dropped, 0, "{report:?}");
        assert_eq!(report.absent, 0, "{report:?}");
        assert!(report.largest <= WINDOW, "{report:?}");
    }
}
