//! `coldpress serve`: one model behind the OpenAI, Anthropic and Ollama protocols.
//!
//! The address is taken and `/health` answers before the model is loaded. The server is ready after one token was produced within
//! the budget; `/health` says so with 200, and a line on standard error. Ctrl-C ends it: running answers get a moment to finish.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use coldpress::service::{Service, Serving};
use coldpress_server::{Health, Server, ServerSettings, ServerState, ServiceBackend, StopHandle};

use crate::arguments::ServeArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::{Ended, Usage, interrupt, load, output};

/// How often a signal is looked for.
const SIGNAL_LOOK: Duration = Duration::from_millis(50);
/// Time that answers have to end when the program is to; shorter than the server's, so that those it cuts are told.
const GRACE: Duration = Duration::from_millis(4500);

/// Runs the command.
///
/// # Errors
/// The address cannot be had, or loading or the first token failed.
pub fn serve(arguments: &ServeArguments, environment: &Environment) -> Result<Ended> {
    let settings = settings(arguments, environment)?;
    let open = settings.api_key.is_none() && !settings.host.is_loopback();
    let server = Server::bind(settings)
        .with_context(|| format!("cannot listen at {} port {}", arguments.host, arguments.port))?;
    let address = server.address()?;
    output::line(&format!("listening at http://{address}, loading the model"));
    if open {
        output::line("note: anybody who reaches this address may use the model; --api-key asks for a key");
    }
    let (state, stop) = (server.state(), server.stop_handle());
    let http = std::thread::Builder::new().name("coldpress-http".to_owned()).spawn(move || server.run())?;
    let address = format!("http://{address}");
    let result = answer_until_asked_to_stop(arguments, environment, &state, &address, &stop);
    if let Err(error) = &result {
        state.set_health(Health::Failed(output::explain(error)));
    }
    stop.stop();
    http.join().map_err(|_| anyhow::anyhow!("the HTTP server ended badly"))??;
    result
}

fn settings(arguments: &ServeArguments, environment: &Environment) -> Result<ServerSettings> {
    let host: IpAddr = match arguments.host.as_str() {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host.parse().map_err(|_| {
            Usage(anyhow::anyhow!("--host takes an address such as 127.0.0.1, ::1 or 0.0.0.0, not {host:?}"))
        })?,
    };
    // A variable that a script failed to fill must not leave the server open.
    if arguments.api_key.as_deref() == Some("") {
        return Err(Usage(anyhow::anyhow!("--api-key is empty: give a key, or leave the option away")).into());
    }
    if arguments.alias.as_deref().is_some_and(|name| name.trim().is_empty()) {
        return Err(Usage(anyhow::anyhow!("--alias is empty: give the model a name")).into());
    }
    if let Some(wrong) = arguments.cors.iter().find(|origin| !is_origin(origin)) {
        let wanted = "scheme and host without a path, such as https://chat.example, or *";
        return Err(Usage(anyhow::anyhow!("--cors takes an origin, {wanted}; not {wrong:?}")).into());
    }
    let api_key = arguments.api_key.clone().or_else(|| environment.api_key.clone());
    Ok(ServerSettings {
        host,
        port: arguments.port,
        api_key,
        cors_origins: arguments.cors.clone(),
        allowed_hosts: arguments.allowed_host.clone(),
        ..ServerSettings::default()
    })
}

/// Whether browsers could send this as `Origin`.
fn is_origin(text: &str) -> bool {
    let host = text.split_once("://").map(|(scheme, host)| (!scheme.is_empty()).then_some(host));
    text == "*"
        || text == "null"
        || host.flatten().is_some_and(|host| !host.is_empty() && !host.contains('/'))
}

fn answer_until_asked_to_stop(
    arguments: &ServeArguments,
    environment: &Environment,
    state: &Arc<ServerState>,
    address: &str,
    stop: &StopHandle,
) -> Result<Ended> {
    let model = &arguments.load.model;
    let serving = serving(arguments);
    let configuration = load::configuration(&arguments.load, environment, Use::Serve);
    let configuration = configuration.serving(serving).route_telemetry(true);
    let (mut runtime, published) = load::load(model, &configuration, Use::Serve.name(), environment)?;
    state.set_health(Health::Probing);
    let probed = runtime.probe()?;
    let plan = runtime.status().plan;
    let budget = plan.plan.budget;
    let service = Service::start(runtime)?;
    let name = arguments.alias.clone().unwrap_or_else(|| name_of(model));
    let backend = ServiceBackend::new(service.client(), &name).describe(|model| {
        model.parameter_size = people_write(plan.model.parameters);
        model.quantization = plan.model.quantization.clone();
        model.embedding_length = plan.model.hidden;
    });
    state.ready(Arc::new(backend));
    output::line(&format!(
        "ready: {name} at {address}; one token after {:.1} s, {} held of {budget}{}",
        probed.time.as_secs_f64(),
        probed.anon,
        output::lossy(&plan.lossy)
    ));
    let client = service.client();
    let mut failure = None;
    while !interrupt::asked() {
        std::thread::sleep(SIGNAL_LOOK);
        if failure.is_none() {
            failure = client.failure().map(str::to_owned);
            if let Some(reason) = &failure {
                output::line(&format!("failed: {reason}; nothing is answered any more, restart the server"));
            }
        }
    }
    output::line("stopping");
    drop(published);
    // Nobody new is taken, and those who are answered may end.
    stop.stop();
    let end = Instant::now() + GRACE;
    let is_busy = || {
        let status = client.status();
        !status.running.is_empty() || status.waiting > 0
    };
    while Instant::now() < end && is_busy() {
        std::thread::sleep(SIGNAL_LOOK);
    }
    service.stop();
    match failure {
        Some(reason) => anyhow::bail!("the engine failed: {reason}"),
        None => Ok(Ended::Done),
    }
}

fn serving(arguments: &ServeArguments) -> Serving {
    Serving {
        parallel: arguments.parallel,
        queue: arguments.queue,
        kv_positions: arguments.kv_tokens,
        request_bytes: arguments.request_memory,
        snapshots: arguments.kv_dir.clone().map(|folder| (folder, arguments.kv_dir_size)),
    }
}

/// A number of weights with three digits: `26.1M`.
fn people_write(count: u64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];
    let count = count as f64;
    match units.into_iter().find(|&(unit, _)| count >= unit) {
        Some((unit, name)) => {
            let value = count / unit;
            let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            format!("{value:.digits$}{name}")
        }
        None => format!("{count}"),
    }
}

/// The name of a model file without its ending.
fn name_of(model: &Path) -> String {
    // A folder's name may have dots that begin no ending.
    let name = if model.is_dir() { model.file_name() } else { model.file_stem() };
    let stem = name.map(|stem| stem.to_string_lossy().into_owned());
    stem.filter(|stem| !stem.is_empty()).unwrap_or_else(|| "coldpress".to_owned())
}
