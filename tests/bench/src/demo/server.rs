//! The server of a demo: the ordinary server in this process, on a free port, with a data folder
//! of its own that goes away at the end.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use toml::Value;

use super::{Options, Running};
use hone::app::App;
use hone::config::{Config, Sources};
use hone::logs;

/// `hone-bench demo`.
pub(crate) fn command(options: Options) -> Result<ExitCode, String> {
    let quiet = config(&options, None).map_err(|error| format!("{error:#}"))?;
    let _logging = logs::start(&quiet.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(quiet.http.worker_threads)
        .enable_all()
        .build()
        .map_err(|error| format!("the async threads could not be started: {error}"))?;
    let of_server = options.clone();
    let result = runtime.block_on(super::run(options, async |_seed| start(&of_server).await));
    runtime.shutdown_background();
    result
        .map(|()| ExitCode::SUCCESS)
        .map_err(|error| format!("{error:#}"))
}

fn config(options: &Options, data: Option<&Path>) -> Result<Config> {
    let text = |key: &str, value: &str| (key.to_owned(), Value::String(value.to_owned()));
    let mut flags = vec![
        text("http.bind", "127.0.0.1:0"),
        text("log.level", "warn"),
        // So that the server can tell by itself whether it helps.
        ("learning.holdback_local".to_owned(), Value::Float(0.1)),
    ];
    if let Some(model) = &options.model {
        flags.push(text("model.path", model));
        // The person says what they mean with a thumb, so no reading of replies is fitted, which takes minutes.
        flags.push(("judge.reading.enabled".to_owned(), Value::Boolean(false)));
    }
    if let Some(data) = data {
        flags.push(text("store.data_dir", &data.display().to_string()));
    }
    let sources = Sources::read(options.config.as_deref(), flags)?;
    Ok(Config::load(&sources)?)
}

async fn start(options: &Options) -> Result<Running> {
    let data = std::env::temp_dir().join(format!("hone-demo-{}", uuid::Uuid::now_v7()));
    let app = App::start(config(options, Some(&data))?)
        .await
        .map_err(anyhow::Error::msg)?;
    let url = format!("http://{}", app.addr);
    let stop = Box::pin(async move {
        app.stop().await;
        if let Err(error) = std::fs::remove_dir_all(&data) {
            let folder = data.display();
            eprintln!("the demo's data folder {folder} could not be removed: {error}");
        }
    });
    Ok(Running {
        url,
        stop: Some(stop),
    })
}
