//! The words of the command line: Dynamo's own, and where the server is.

use std::time::Duration;

use dynamo_backend_common::{CommonArgs, DisaggregationMode, DynamoError, WorkerConfig};

use crate::engine::{LongviewEngine, Options};
use crate::error::invalid;

/// A worker of NVIDIA Dynamo for a Longview server on the same machine.
#[derive(Clone, Debug, clap::Parser)]
pub struct Args {
    /// Dynamo's own words.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Address of the Longview server
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    pub server: String,
    /// Its first key, if it has keys
    #[arg(long, env = "LONGVIEW_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Seconds to wait for a server that is not ready
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    pub ready_timeout: Duration,
    /// The server's --kv-events; without it the router does not know what it holds
    #[arg(long)]
    pub kv_events: Option<String>,
    /// The server's --kv-events-topic
    #[arg(long, default_value = "")]
    pub kv_events_topic: String,
    /// Folder with tokenizer and config of the same model
    #[arg(long)]
    pub model_path: String,
    /// What clients call the model [default: the folder]
    #[arg(long)]
    pub served_model_name: Option<String>,
}

impl Args {
    /// The engine, and how Dynamo runs it.
    ///
    /// # Errors
    /// `InvalidArgument`: what this worker does not do.
    pub fn engine(self) -> Result<(LongviewEngine, WorkerConfig), DynamoError> {
        let common = self.common;
        if common.disaggregation_mode != DisaggregationMode::Aggregated || common.route_to_encoder {
            return Err(invalid(
                "--disaggregation-mode: this worker reads and answers by itself (agg), with no \
                 other worker before or behind it",
            ));
        }
        let config = WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            model_name: self.model_path.clone(),
            served_model_name: self.served_model_name.clone(),
            endpoint_types: common.endpoint_types,
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            runtime: common.runtime,
            enable_rl: common.enable_rl,
            ..WorkerConfig::default()
        };
        let options = Options {
            server: self.server,
            api_key: self.api_key,
            ready_timeout: self.ready_timeout,
            kv_events: self.kv_events,
            kv_events_topic: self.kv_events_topic,
            model_path: self.model_path,
            served_model_name: self.served_model_name,
        };
        Ok((LongviewEngine::new(options)?, config))
    }
}

/// A time to wait: above 0, and one that a clock can count.
fn seconds(word: &str) -> Result<Duration, String> {
    let time = word.parse().ok().and_then(|s: f64| Duration::try_from_secs_f64(s).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| format!("{word} is not a number of seconds above 0"))
}
