//! Attributes of what is sent, and what is said of this process with all of it.
//!
//! Knows no signal: spans and records of the log use the same.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::conventions::SCOPE;
use crate::config::OtelSettings;

const INSTANCE_ID: &str = "service.instance.id";

/// What is said of this process.
pub(super) fn resource(settings: &OtelSettings) -> Resource {
    let mut attributes = Attributes::default();
    for (key, value) in &settings.resource {
        attributes.text(key, value);
    }
    Resource { attributes: attributes.0, ..Resource::default() }
}

/// These, with an id of this process unless one is set: a collector could not tell the sums of two replicas apart.
pub(super) fn with_instance_id(settings: &OtelSettings) -> OtelSettings {
    let mut settings = settings.clone();
    if !settings.resource.iter().any(|(key, _)| &**key == INSTANCE_ID) {
        settings.resource.extend(random_uuid().map(|id| (INSTANCE_ID.into(), id.into())));
    }
    settings
}

/// Of version 4; `None` if there is no randomness.
fn random_uuid() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    let random = u128::from_be_bytes(bytes);
    let versioned = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{versioned:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Some(parts.join("-"))
}

/// Who says it.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// A list of attributes. What is not known is left out.
#[derive(Default)]
pub(super) struct Attributes(pub(super) Vec<KeyValue>);

impl Attributes {
    fn push(&mut self, key: &str, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.0.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.push(key, Value::StringValue(value.to_owned()));
    }

    pub(super) fn may_text(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    pub(super) fn number(&mut self, key: &str, value: impl TryInto<i64>) {
        if let Ok(value) = value.try_into() {
            self.push(key, Value::IntValue(value));
        }
    }

    pub(super) fn may_number(&mut self, key: &str, value: Option<impl TryInto<i64>>) {
        if let Some(value) = value {
            self.number(key, value);
        }
    }

    pub(super) fn may_real(&mut self, key: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.push(key, Value::DoubleValue(value));
        }
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        if value {
            self.push(key, Value::BoolValue(true));
        }
    }

    pub(super) fn list<'t>(&mut self, key: &str, texts: impl Iterator<Item = &'t str>) {
        let texts = texts.map(|text| AnyValue { value: Some(Value::StringValue(text.to_owned())) });
        let values: Vec<AnyValue> = texts.collect();
        if !values.is_empty() {
            self.push(key, Value::ArrayValue(ArrayValue { values }));
        }
    }
}
