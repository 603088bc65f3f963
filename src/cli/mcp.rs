//! `plimsoll mcp`: a server of the Model Context Protocol on standard input and output, by which an agent asks for its own
//! context, cost and limits. It only reads, and shows no content.
//!
//! It starts with its client, so it may be there before the proxy, and stay when that restarts: each question finds the
//! proxy anew.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::stdio;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::{Value, json};
use strum::VariantNames as _;

use super::admin_client::{AdminClient, load_config};
use super::print::CliError;
use super::sessions::{newest, request_path};
use crate::admin::spend::SpendBy;
use crate::config::ConfigSources;
use crate::dialect::percent::encoded;

/// What the server says that it is for.
const INSTRUCTIONS: &str = "Plimsoll is the proxy between this agent and its model. Ask it how full the context is, what the \
     next call costs, what was spent, what is left of limits, and what was changed in a request. Nothing here changes anything.";

/// A tool that asks the admin listener one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::AsRefStr, strum::EnumIter, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
enum Question {
    Context,
    Sessions,
    Spend,
    Limits,
    Explain,
    Compare,
}

impl Question {
    fn description(self) -> &'static str {
        match self {
            Self::Context => {
                "How full the context window of a session is, by kind of content, what the next call's input costs, and \
                 how wrong the last estimate was."
            }
            Self::Sessions => "The newest sessions: agent, model, how full, when last used.",
            Self::Spend => {
                "What was spent since a time, in US dollars and tokens, by model, session, agent, tool and more."
            }
            Self::Limits => {
                "How much is left of the providers' rate limits and quotas, as their responses last said."
            }
            Self::Explain => {
                "What was changed in a request before it was sent, what was not and why, and the effect on the cache."
            }
            Self::Compare => {
                "What differs between two requests of a session: what was added, dropped, moved or cut, and where the \
                 provider's cached prefix ends."
            }
        }
    }

    /// The names of its arguments, what they mean, and their possible values if they are few. None of them is required.
    fn arguments(self) -> &'static [(&'static str, &'static str, &'static [&'static str])] {
        match self {
            Self::Context => &[("session", "The session's id; else the newest one.", &[])],
            Self::Sessions | Self::Limits => &[],
            Self::Spend => &[
                ("by", "By which name the calls are listed; else by model.", SpendBy::VARIANTS),
                ("since", "ms since 1970; else all that is stored.", &[]),
            ],
            Self::Explain => &[("request", "The request's id; else the newest one.", &[])],
            Self::Compare => &[
                ("request", "The request's id; else the newest one.", &[]),
                ("with", "The other request's id; else the one that it continues.", &[]),
            ],
        }
    }

    fn tool(self) -> Tool {
        let mut properties = JsonObject::new();
        for (name, description, values) in self.arguments() {
            let mut schema = json!({"type": "string", "description": description});
            if !values.is_empty() {
                schema["enum"] = json!(values);
            }
            properties.insert((*name).to_owned(), schema);
        }
        let schema = JsonObject::from_iter([
            ("type".to_owned(), json!("object")),
            ("properties".to_owned(), Value::Object(properties)),
            ("additionalProperties".to_owned(), json!(false)),
        ]);
        Tool::new(self.as_ref().to_owned(), self.description(), Arc::new(schema))
            .with_annotations(ToolAnnotations::new().read_only(true))
    }

    /// Where the admin listener answers it.
    async fn path(self, client: &AdminClient, given: &Given) -> Result<String, CliError> {
        Ok(match self {
            Self::Context => {
                let session = match given.get("session") {
                    Some(session) => session.to_owned(),
                    None => newest(client).await?,
                };
                format!("/api/v1/sessions/{}/threads/latest/context?format=text", encoded(&session))
            }
            Self::Sessions => "/api/v1/sessions?limit=20&details=true".to_owned(),
            Self::Spend => {
                let [by, since] = [("by", "model"), ("since", "0")]
                    .map(|(name, otherwise)| encoded(given.get(name).unwrap_or(otherwise)));
                format!("/api/v1/spend?by={by}&since={since}&format=text")
            }
            Self::Limits => "/api/v1/limits?format=text".to_owned(),
            Self::Explain => {
                let request = request_path(client, given.get("request")).await?;
                format!("{request}/explain?format=text")
            }
            Self::Compare => {
                let request = request_path(client, given.get("request")).await?;
                let with = given.get("with").map(|with| format!("with={}&", encoded(with)));
                format!("{request}/compare?{}format=text", with.unwrap_or_default())
            }
        })
    }
}

/// The arguments of a call.
struct Given(JsonObject);

impl Given {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str().filter(|text| !text.is_empty())
    }
}

struct McpServer {
    /// Where the configuration is read from, which says where the proxy is.
    sources: ConfigSources,
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("plimsoll", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        use strum::IntoEnumIterator as _;
        Ok(ListToolsResult::with_all_items(Question::iter().map(Question::tool).collect()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let question: Question = call.name.parse().map_err(|_| {
            ErrorData::invalid_params(format!("there is no tool {:?}", call.name), None)
        })?;
        let given = Given(call.arguments.unwrap_or_default());
        Ok(match self.ask(question, &given).await {
            Ok(answer) => CallToolResult::success(vec![ContentBlock::text(answer)]).into(),
            // The agent reads what to do about it.
            Err(CliError(reason)) => CallToolResult::error(vec![ContentBlock::text(reason)]).into(),
        })
    }
}

impl McpServer {
    async fn ask(&self, question: Question, given: &Given) -> Result<String, CliError> {
        let client = AdminClient::configured(&self.sources).await?;
        client.text(&question.path(&client, given).await?).await
    }
}

/// Serves until standard input ends.
///
/// # Errors
/// If the configuration is wrong, or the client breaks off. A proxy that is not there is said in answers.
pub(super) fn serve(sources: ConfigSources) -> Result<(), CliError> {
    load_config(&sources)?;
    let failed =
        |error: &dyn std::fmt::Display| CliError(format!("the MCP client went away: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let running = McpServer { sources }.serve(stdio()).await.map_err(|error| failed(&error))?;
        running.waiting().await.map_err(|error| failed(&error))?;
        Ok(())
    })
}
