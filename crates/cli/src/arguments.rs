//! The command line: what was typed, checked for form but not yet for sense.
//!
//! Sizes, fractions and names are parsed here, so that a mistake is a usage error (exit code 2) before any file is
//! opened. The settings of a load are rows of the table in `choices.rs`; `environment.rs` adds what comes from variables.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use coldpress::{BudgetSpec, Bytes, Capacity, ExpertType, KvType, Residency, SizeSpec};

use crate::convert::ConvertArguments;
use crate::flags::{Flags, SeriesFlags};
use crate::pull::PullArguments;
use crate::values::{policy, size};

/// Steps of a range of cache sizes.
const RANGE_STEPS: usize = 8;
/// More cache sizes than anybody reads.
const CAPACITIES_MAX: usize = 64;

/// Run Mixture-of-Experts language models larger than memory, under one memory budget.
#[derive(Debug, Parser)]
#[command(name = "coldpress", version, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt and print the text as it comes.
    Run(RunArguments),
    /// Talk to a model; an empty line or Ctrl-D ends the program.
    Chat(ChatArguments),
    /// Answer requests of the OpenAI, Anthropic and Ollama protocols over HTTP.
    Serve(ServeArguments),
    /// Show what would be held in memory and how fast it would run; the headers of the model are enough.
    Plan(PlanArguments),
    /// Write the model's pack: its experts, ready for the kernels, one read each.
    Pack(PackArguments),
    /// Write a model as one GGUF file, or its pack: as it is, or in types that are asked for.
    Convert(ConvertArguments),
    /// Download a model from a Hugging Face-compatible hub into the hub's own cache, and print its path.
    Pull(PullArguments),
    /// Show what is inside a model file.
    Inspect(InspectArguments),
    /// Write teacher-forced logits of given token ids as a .npy file [tokens, vocabulary].
    Logits(LogitsArguments),
    /// Compare lossy settings with exact ones on a text: divergence, agreement, perplexity.
    Eval(EvalArguments),
    /// Record which experts the tokens of some text choose, for `simulate`.
    Trace(TraceArguments),
    /// Measure how a model is read, cached and prefetched best under a budget, for later runs.
    Tune(TuneArguments),
    /// Compare cache policies with each other and with the optimum on a recorded trace.
    Simulate(SimulateArguments),
    /// Measure prefill and decode: rates, where the time goes, expert reads, memory.
    Bench(BenchArguments),
    /// Check this machine, line by line, with a fix for what is wrong; measure memory bandwidth and int8 peak.
    Doctor(DoctorArguments),
    /// Measure what a disk delivers to cold reads, and what that means for a model.
    Disk(DiskArguments),
    /// Show what the running programs of coldpress hold in memory, and why.
    Status(StatusArguments),
}

impl Command {
    /// Whether the result goes to standard output as one JSON object.
    pub fn json(&self) -> bool {
        match self {
            Self::Run(arguments) => arguments.json,
            Self::Plan(arguments) => arguments.json,
            Self::Pack(arguments) => arguments.json,
            Self::Convert(arguments) => arguments.json,
            Self::Pull(arguments) => arguments.json,
            Self::Inspect(arguments) => arguments.json,
            Self::Bench(arguments) => arguments.json,
            Self::Eval(arguments) => arguments.json,
            Self::Doctor(arguments) => arguments.json,
            Self::Trace(arguments) => arguments.json,
            Self::Tune(arguments) => arguments.json,
            Self::Simulate(arguments) => arguments.json,
            Self::Disk(arguments) => arguments.json,
            Self::Status(arguments) => arguments.json,
            Self::Chat(_) | Self::Logits(_) | Self::Serve(_) => false,
        }
    }
}

/// The model and how it is loaded.
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Model: a .gguf file, any part of a split set, a folder that holds one set, or a Hugging Face folder.
    pub model: PathBuf,
    #[command(flatten)]
    pub flags: Flags,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    /// Address to listen at; 0.0.0.0 or :: for all of this machine's
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen at; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Key that clients must send; the variable COLDPRESS_API_KEY keeps it out of the process list
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Origin of web pages that may ask, such as https://chat.example; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Further host name under which this server is reached; may be given several times
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
    /// Name of the model in the protocols [default: the file's name]
    #[arg(long, value_name = "NAME")]
    pub alias: Option<String>,
    /// Requests that are computed at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parallel)]
    pub parallel: usize,
    /// Requests that may wait, at least 1
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = places)]
    pub queue: usize,
    /// Tokens of keys and values for all requests and reused beginnings together, at least --ctx [default: --ctx]
    #[arg(long, value_name = "N")]
    pub kv_tokens: Option<u32>,
    /// Folder that keeps keys and values, so that conversations go on after a restart
    #[arg(long, value_name = "FOLDER")]
    pub kv_dir: Option<PathBuf>,
    /// Most bytes in that folder
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = memory, requires = "kv_dir")]
    pub kv_dir_size: Bytes,
    /// Memory of requests that wait or are computed, beside keys and values
    #[arg(long, value_name = "SIZE", default_value = "96MiB", value_parser = request_memory)]
    pub request_memory: Bytes,
}

/// A request passes the queue even when nobody waits.
fn places(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| format!("{text} is not a number from 1 on"))
}

/// Less than this holds no request of a usual client, and everything would be refused.
fn request_memory(text: &str) -> Result<Bytes, String> {
    const LEAST: Bytes = Bytes(1 << 20);
    let bytes = memory(text)?;
    if bytes < LEAST { Err(format!("{text} holds no request: at least {LEAST}")) } else { Ok(bytes) }
}

fn parallel(text: &str) -> Result<usize, String> {
    let most = coldpress::service::PARALLEL_MAX;
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("{text} is not a number from 1 to {most}")),
    }
}

/// Options that decide how tokens are chosen.
#[derive(Debug, Args)]
pub struct SamplingArguments {
    /// 0 always takes the most likely token [default: 0 for run, 0.7 for chat]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub top_k: usize,
    /// Keep the most likely tokens that hold this share of the probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Make tokens that occurred less likely; 1 for none
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Start of the random sequence
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = token_count)]
    pub max_tokens: usize,
    /// Go on after the model's end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    /// The prompt; without it, standard input is read to its end
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// With --raw: read control tokens such as <|im_start|> in the prompt as such
    #[arg(long, requires = "raw")]
    pub parse_special: bool,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    /// Plan for a machine with this much memory, such as 64GiB
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub ram: Option<Bytes>,
    /// Plan for a disk that reads experts at this rate, such as 3GB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub disk: Option<f64>,
    /// Plan for a processor that reads memory at this rate, such as 100GB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub bandwidth: Option<f64>,
    /// Tokens of the prompt that the time to the first token is for
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = token_count)]
    pub prompt_tokens: usize,
    /// Words of the answer that the time is for
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = token_count)]
    pub answer_words: usize,
    /// Measure nothing; rates that are not given are assumed
    #[arg(long)]
    pub no_probe: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `pack`.
#[derive(Debug, Args)]
pub struct PackArguments {
    /// Model: a .gguf file, any part of a split set, a folder that holds one set, or a Hugging Face folder.
    pub model: PathBuf,
    /// Where to write the pack [default: the cache folder, named by the model's fingerprint]
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// What experts become in the pack: q4_k, q4_0, q8_0, mxfp4, or keep: as in the model file; lossy but for keep
    #[arg(long, value_name = "TYPE", default_value = "keep", value_parser = named(&ExpertType::ALL))]
    pub experts: ExpertType,
    /// Bound on the memory of the process while packing [default: as for run]
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<BudgetSpec>,
    /// Check an existing pack, record by record, against the model file
    #[arg(long)]
    pub verify: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArguments {
    /// Model: a .gguf file, any part of a split set, a folder that holds one set, or a Hugging Face folder.
    pub file: PathBuf,
    /// Also list every key of the metadata
    #[arg(long)]
    pub metadata: bool,
    /// Also list every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Also work out the fingerprint by which packs and snapshots know the model: reads some megabytes of samples
    #[arg(long)]
    pub fingerprint: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `logits`.
#[derive(Debug, Args)]
pub struct LogitsArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    /// Token ids: 1,2,3 or a file with a JSON array
    #[arg(long, value_name = "FILE|LIST")]
    pub ids: String,
    /// The .npy file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Arguments of `eval`.
#[derive(Debug, Args)]
pub struct EvalArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    /// A file with text like that of later runs; it is read in windows of --ctx tokens [default: 512]
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Most tokens of the text that are compared
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = token_count)]
    pub tokens: usize,
    /// Precision of the KV cache of the exact run
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = exact_kv)]
    pub exact_kv: KvType,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn exact_kv(text: &str) -> Result<KvType, String> {
    let exact = KvType::ALL.into_iter().filter(|(_, kv_type)| !kv_type.is_lossy());
    exact.clone().find(|&(name, _)| name == text).map(|(_, kv_type)| kv_type).ok_or_else(|| {
        let names: Vec<&str> = exact.map(|(name, _)| name).collect();
        format!("{text} is not exact; exact are {}", names.join(" and "))
    })
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// Bounds on the memory of the process, one configuration each: as for run, such as 25%model,50%model [default: 70%]
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    pub budget: Vec<BudgetSpec>,
    /// Who holds the experts' bytes, one configuration each [default: auto]
    #[arg(long, value_name = "MODE,..", value_delimiter = ',', value_parser = named(&Residency::ALL))]
    pub residency: Vec<Residency>,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = token_count)]
    pub prompt_tokens: usize,
    /// Forward passes after the prompt, one token each
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = token_count)]
    pub gen_tokens: usize,
    /// Tokens that are in the KV cache before the prompt, one measurement each
    #[arg(long, value_name = "D,..", value_delimiter = ',', default_value = "0")]
    pub depths: Vec<usize>,
    /// Runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = token_count)]
    pub repeat: usize,
    /// Model: a .gguf file, any part of a split set, a folder that holds one set, or a Hugging Face folder.
    pub model: PathBuf,
    #[command(flatten)]
    pub flags: SeriesFlags,
    /// Print one JSON object with every run instead of the tables
    #[arg(long)]
    pub json: bool,
    /// Write plots and a table to this file as one page for a browser
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Arguments of `disk`.
#[derive(Debug, Args)]
pub struct DiskArguments {
    /// A model or another large file to read, or a folder in which a file is written for it [default: this folder]
    #[arg(value_name = "PATH|MODEL")]
    pub path: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub struct TraceArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    /// A prompt, answered in a conversation of its own; may be repeated
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// A file with a prompt; may be repeated, and follows those of -p
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Vec<PathBuf>,
    /// Continue the texts as they are, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// Tokens generated after each prompt
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = token_count)]
    pub gen_tokens: usize,
    /// 0 always takes the most likely token, which makes small models repeat themselves
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    pub temperature: f32,
    /// Start of the random sequence
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Go on after the model's end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
    /// The trace file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tune`.
#[derive(Debug, Args)]
pub struct TuneArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    /// A file with text like that of later runs; may be repeated [default: English prose of the program]
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Vec<PathBuf>,
    /// Tokens generated after each text; prefetch is timed on as many of them as pass in a few seconds
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = token_count)]
    pub gen_tokens: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArguments {
    /// A file that `trace` wrote.
    pub trace: PathBuf,
    /// Cache sizes: slots, shares of all experts, or a range of shares in eight steps
    #[arg(long, value_name = "LIST|A%..B%", default_value = "10%..90%", value_parser = capacities)]
    pub capacity: Capacities,
    /// Policies to compare [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = policy)]
    pub policy: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Draw the hit rates to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Cache sizes to simulate, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacities(pub Vec<Capacity>);

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// A model, to check whether it runs here; or a folder whose disk is checked [default: the folder of packs]
    #[arg(value_name = "PATH|MODEL")]
    pub path: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A parser for the names of a table, which shows the names when none matches.
pub fn named<T: Copy + Send + Sync + 'static>(
    table: &'static [(&'static str, T)],
) -> impl clap::builder::TypedValueParser<Value = T> {
    use clap::builder::TypedValueParser;
    clap::builder::PossibleValuesParser::new(table.iter().map(|&(name, _)| name)).map(move |name| {
        let found = table.iter().find(|&&(known, _)| known == name);
        found.expect("the parser lets only names of the table pass").1
    })
}

/// `64GiB`.
fn memory(text: &str) -> Result<Bytes, String> {
    size(text, "64GiB")
}

/// `3GB/s`, in bytes per second.
fn rate(text: &str) -> Result<f64, String> {
    let size = text.trim().strip_suffix("/s").map(str::parse::<SizeSpec>);
    match size {
        Some(Ok(SizeSpec::Exact(bytes))) if bytes != Bytes::MAX && bytes > Bytes::ZERO => Ok(bytes.0 as f64),
        _ => Err(format!("'{text}' is not a rate such as 3GB/s or 500MB/s")),
    }
}

fn token_count(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(value) if value >= 1 => Ok(value),
        _ => Err(format!("'{text}' is not a number of at least 1")),
    }
}

/// `64,25%` or `10%..90%`.
fn capacities(text: &str) -> Result<Capacities, String> {
    let wrong =
        || format!("'{text}' is no list of slots or shares (64,25%) and no range of shares (10%..90%)");
    let share = |text: &str| {
        let percent: f64 = text.trim().strip_suffix('%')?.parse().ok()?;
        (percent > 0.0 && percent <= 100.0).then_some(percent / 100.0)
    };
    if let Some((from, to)) = text.split_once("..") {
        let (Some(from), Some(to)) = (share(from), share(to)) else { return Err(wrong()) };
        if to <= from {
            return Err(format!("'{text}': the range must end above its beginning"));
        }
        let step = (to - from) / RANGE_STEPS as f64;
        let shares = (0..=RANGE_STEPS).map(|index| Capacity::Share(from + step * index as f64));
        return Ok(Capacities(shares.collect()));
    }
    let one = |text: &str| match text.trim().parse::<usize>() {
        Ok(slots) if slots > 0 => Some(Capacity::Slots(slots)),
        _ => share(text).map(Capacity::Share),
    };
    let list: Option<Vec<Capacity>> = text.split(',').map(one).collect();
    match list {
        Some(list) if list.len() <= CAPACITIES_MAX => Ok(Capacities(list)),
        Some(list) => Err(format!("{} cache sizes; at most {CAPACITIES_MAX} can be compared", list.len())),
        None => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_size_that_is_none_is_answered_with_what_is_wrong_and_what_a_size_is() {
        let unit = memory("1PiB").expect_err("no unit");
        for part in ["unknown unit", "TiB", "1PiB is written 1024TiB", "64GiB"] {
            assert!(unit.contains(part), "{unit} lacks {part}");
        }
        assert!(!unit.contains("%model"), "what a budget may be is not said of a memory: {unit}");
        assert!(memory("99999999999TiB").expect_err("too large").contains("sizes end below 16777216TiB"));
        assert_eq!(memory("1024TiB"), Ok(Bytes(1 << 50)));
    }

    #[test]
    fn rates_are_sizes_per_second() {
        assert_eq!(rate("3GB/s"), Ok(3e9));
        assert_eq!(rate("1.5GiB/s"), Ok(1.5 * f64::from(1 << 30)));
        for wrong in ["3GB", "3", "/s", "0GB/s", "-1GB/s", "fast/s", "50%/s", "unlimited/s", ""] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        for wrong in ["64", "50%", "unlimited", "x"] {
            assert!(wrong == "64" || memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cache_sizes_are_lists_or_ranges() {
        let range = capacities("10%..90%").expect("a range").0;
        assert_eq!(range.len(), 9);
        assert_eq!(range[0], Capacity::Share(0.1));
        let list = capacities("64, 12.5%").expect("a list").0;
        assert_eq!(list, [Capacity::Slots(64), Capacity::Share(0.125)]);
        for wrong in ["", "0", "0%", "101%", "x", "50%..10%", "1..2", "-5%", "nan%"] {
            assert!(capacities(wrong).is_err(), "{wrong}");
        }
    }
}
