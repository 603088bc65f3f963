//! Sends the request of an exchange, until there is a response to forward.
//!
//! What its plan needs no more is released here. A response of our own ends the exchange.

use http::{StatusCode, request};

use super::live_exchange::{LiveExchange, OwnResponse, Planned, Sent, answer, proxy_error};
use crate::context::Outcome;
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::plan::added_option::AddedOptionKind;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::turn::counting;

impl LiveExchange<Planned> {
    /// Sends the request, again if need be, until there is a response to forward.
    ///
    /// # Errors
    /// Our own response, if there is none, or if it counts tokens where the upstream does not.
    pub(super) async fn send(
        self,
        head: request::Parts,
        body: OutgoingBody,
    ) -> Result<LiveExchange<Sent>, OwnResponse> {
        let (mut exchange, mut planned) = self.split();
        let recorder = &mut exchange.recorder;
        let proxy = recorder.proxy.clone();
        if let Some(placed) = &mut planned.placed {
            placed.counted = counting::request_count(placed, &head, &body);
        }
        let target = exchange.client.target();
        if let Some(count) = &planned.count
            && let Some(counted) = Box::pin(count.count_at_once(target, recorder)).await
        {
            return Err(answer(counted, Outcome::Complete, exchange.recorder));
        }
        // Sending consumes the head, and the response to a count is judged by it.
        let counted_head = planned.count.as_ref().map(|_| head.clone());
        // 9. Forward.
        recorder.record_forwarded();
        let (mut response, added) = match planned.send(head, body, recorder).await {
            Ok(sent) => sent,
            Err(error) => {
                if let Some(placed) = &mut planned.placed {
                    // Without a response, what was injected was not delivered.
                    placed.requeue_messages().await;
                }
                return Err(exchange.fail(error));
            }
        };
        let Planned { placed, writer, count, .. } = planned;
        let upstream_time = recorder.sent.elapsed();
        let id =
            exchange.client.provider_request_id(response.headers(), &proxy, &exchange.upstream);
        recorder.event.provider_request_id = id;
        if let (Some(count), Some(head)) = (count, counted_head) {
            let answered = count.count_if_missing(response, target, &head, recorder);
            response = match Box::pin(answered).await {
                Ok(counted) => return Err(answer(counted, Outcome::Complete, exchange.recorder)),
                Err(response) => response,
            };
        }
        // Its client asked for no upgrade, and could not read what follows.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let why = "it switched to a protocol that was not requested".to_owned();
            let fault = proxy_error(&exchange.upstream, UpstreamError::Failed(why));
            return Err(exchange.refuse(&fault));
        }
        // Only now: the summary of a request that is refused could not be used.
        if response.status().is_success()
            && let Some(writer) = writer
        {
            writer.begin();
        }
        let hides_diagnosis =
            added.iter().any(|kind| matches!(kind, AddedOptionKind::Diagnosis { .. }));
        let usage_addition =
            placed.as_ref().and_then(|placed| placed.usage_addition(hides_diagnosis));
        let turn = placed.and_then(PlacedRequest::open);
        recorder.record_headers();
        Ok(exchange.into_phase(Sent {
            response,
            upstream_time,
            turn,
            added_usage: added.contains(&AddedOptionKind::Usage),
            usage_addition,
        }))
    }
}
