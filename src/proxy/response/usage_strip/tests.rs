use super::*;

const OPENAI: &str = "api.openai.com";

/// What the upstream sends if usage is requested, and what the client gets, which did not request it.
const STREAMS: &[(&str, &str)] = &[
    (
        "data: {\"id\":1,\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n: ping\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n",
        "data: {\"id\":1,\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n: ping\n\ndata: [DONE]\n\n",
    ),
    (
        "data: {\"usage\": null, \"id\":1}\r\n\r\ndata: {\"choices\":[],\"usage\":{}}\r\n\r\ndata: [DONE]\r\n\r\n",
        "data: {\"id\":1}\r\n\r\ndata: [DONE]\r\n\r\n",
    ),
    // The word in a text does not come from our request.
    (
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\"\"}}]}\n\n",
    ),
    // Beside a finish reason, and in every chunk.
    (
        "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n",
    ),
    (
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"a\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
    ),
    // Azure's first chunk has no choices; it stays.
    (
        "data: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n",
        "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
    ),
    ("data: {\"a\":1,\"usage\":null}\r\rdata: [DONE]\r\r", "data: {\"a\":1}\r\rdata: [DONE]\r\r"),
    // Over several lines, of which some belong to other fields.
    (
        "data: {\"id\":1,\r\nid: 7\r\ndata:  \"usage\":\r\ndata:  null}\r\n\r\n",
        "data: {\"id\":1\r\nid: 7\r\ndata:\r\ndata:}\r\n\r\n",
    ),
    (
        "data: {\"choices\": [],\n data: \"usage\": {\ndata: \"prompt_tokens\": 1}}\n\ndata: [DONE]\n\n",
        "data: [DONE]\n\n",
    ),
    // Beside a choice that says nothing, after the finish reason and before it.
    (
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\": \"stop\"}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null,\"logprobs\":null}],\"usage\":{\"a\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\": \"stop\"}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null,\"logprobs\":null}]}\n\n",
    ),
    (
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}],\"usage\":{\"a\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}]}\n\n",
    ),
    // What else such a chunk says stays.
    (
        "data: {\"id\":1,\"choices\":[],\"error\":{\"message\":\"m\"},\"usage\":{\"a\":1}}\n\n",
        "data: {\"id\":1,\"choices\":[],\"error\":{\"message\":\"m\"}}\n\n",
    ),
    (
        "data: {\"usage\":{\"a\":1},\"choices\":[],\"citations\":[\"u\"],\"cost\":0.1}\n\n",
        "data: {\"choices\":[],\"citations\":[\"u\"],\"cost\":0.1}\n\n",
    ),
    ("data: {\"choices\":[],\"citations\":[],\"error\":null,\"usage\":{\"a\":1}}\n\n", ""),
    // Without a blank line at the end.
    ("data: {\"choices\":[],\"usage\":{\"a\":1}}", ""),
    // Not JSON, no end: unchanged.
    ("data: \"usage\" {\n\n", "data: \"usage\" {\n\n"),
    ("data: {\"usage\":null", "data: {\"usage\":null"),
];

#[test]
fn added_usage_is_hidden_in_any_split() {
    for (sent, want) in STREAMS {
        for size in 1..=sent.len() {
            let mut hiding = UsageStrip::new(
                OPENAI,
                [].into_iter(),
                &crate::proxy::http::memory::MemoryBudget::ample(),
            )
            .unwrap();
            let mut got = Vec::new();
            for chunk in sent.as_bytes().chunks(size) {
                got.extend(hiding.pass(Bytes::copy_from_slice(chunk)).unwrap());
            }
            got.extend(hiding.rest());
            assert_eq!(String::from_utf8_lossy(&got), *want, "cut every {size} bytes");
        }
    }
}

/// Mistral and others send it beside the finish reason, requested or not.
#[test]
fn usage_sent_anyway_is_kept() {
    let finish = "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"usage\":{\"a\":1}}\n\n";
    let silent = "data: {\"choices\":[{\"delta\":{}}],\"usage\":{\"a\":1}}\n\n";
    for (host, is_kept) in [("api.mistral.ai", true), ("API.groq.com", true), (OPENAI, false)] {
        let memory = crate::proxy::http::memory::MemoryBudget::ample();
        let mut hiding = UsageStrip::new(host, [].into_iter(), &memory).unwrap();
        let got = hiding.pass(Bytes::from([finish, silent].concat())).unwrap();
        let hidden = |chunk: &str| chunk.replace(",\"usage\":{\"a\":1}", "");
        let first = if is_kept { finish.to_owned() } else { hidden(finish) };
        assert_eq!(got, first + &hidden(silent), "{host}");
    }
}

/// Hugging Face, DeepSeek, Together and others send it in every chunk, requested or not.
#[test]
fn usual_null_usage_is_kept() {
    let chunk = "data: {\"id\":1,\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n";
    for (host, is_hidden) in [
        ("router.huggingface.co", false),
        ("api.deepseek.com", false),
        ("notapi.openai.com.example", false),
        ("127.0.0.1", false),
        ("api.openai.com", true),
        ("eu.api.openai.com", true),
        ("res.openai.azure.com", true),
        ("Res.services.ai.azure.com", true),
    ] {
        let memory = crate::proxy::http::memory::MemoryBudget::ample();
        let mut hiding = UsageStrip::new(host, [].into_iter(), &memory).unwrap();
        let got = hiding.pass(Bytes::from([chunk, usage, "data: [DONE]\n\n"].concat())).unwrap();
        let chunk = if is_hidden { chunk.replace(",\"usage\":null", "") } else { chunk.to_owned() };
        assert_eq!(got, chunk + "data: [DONE]\n\n", "{host}");
    }
}

#[test]
fn plain_events_are_not_copied() {
    let mut hiding =
        UsageStrip::new(OPENAI, [].into_iter(), &crate::proxy::http::memory::MemoryBudget::ample())
            .unwrap();
    let data = Bytes::from_static(b"data: {\"a\":1}\n\n: ping\n\n");
    assert_eq!(hiding.pass(data.clone()).unwrap().as_ptr(), data.as_ptr());
}

#[test]
fn long_events_are_not_held() {
    let mut hiding =
        UsageStrip::new(OPENAI, [].into_iter(), &crate::proxy::http::memory::MemoryBudget::ample())
            .unwrap();
    let long = Bytes::from(vec![b'x'; HOLD]);
    assert_eq!(hiding.pass(long.clone()).unwrap().len(), 0, "at the limit it waits");
    assert_eq!(hiding.pass(Bytes::from_static(b"y")).unwrap().len(), HOLD + 1, "past it goes on");
    assert_eq!(hiding.pass(Bytes::from_static(b"z\r\n\r")).unwrap(), "z\r\n\r");
    let usage = Bytes::from_static(b"\ndata: {\"choices\":[],\"usage\":{}}\n\n: c\n\n");
    assert_eq!(hiding.pass(usage).unwrap(), "\n: c\n\n", "what comes after it is hidden");
}

#[test]
fn added_usage_is_hidden_compressed() {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(STREAMS[0].0.as_bytes()).unwrap();
    let mut hiding = UsageStrip::new(
        OPENAI,
        ["gzip"].into_iter(),
        &crate::proxy::http::memory::MemoryBudget::ample(),
    )
    .unwrap();
    let got = hiding.pass(Bytes::from(gzip.finish().unwrap())).unwrap();
    assert_eq!(got, STREAMS[0].1);
}
