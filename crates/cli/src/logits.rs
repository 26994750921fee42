//! `coldpress logits`: teacher-forced logits of given token ids, for comparison with other engines.

use anyhow::{Context, Result, bail};

use crate::arguments::LogitsArguments;
use crate::effects::Use;
use crate::environment::Environment;
use crate::npy::NpyWriter;
use crate::{Ended, Usage, interrupt, load, output};

/// Runs the command.
///
/// # Errors
/// The ids are not readable, loading or computing failed, or the file cannot be written.
pub fn logits(arguments: &LogitsArguments, environment: &Environment) -> Result<Ended> {
    let ids = ids(&arguments.ids).map_err(Usage)?;
    let configuration = load::configuration(&arguments.load, environment, Use::Logits);
    let (mut runtime, _state) =
        load::load(&arguments.load.model, &configuration, Use::Logits.name(), environment)?;
    let mut file = NpyWriter::create(&arguments.out, ids.len(), runtime.vocabulary())?;
    let mut failure = None;
    runtime.logits(&ids, &mut |_, logits| {
        failure = file.row(logits).err();
        failure.is_none() && !interrupt::asked()
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    if interrupt::asked() {
        return Ok(Ended::Interrupted);
    }
    file.finish()?;
    output::line(&format!("{}: [{}, {}] f32", arguments.out.display(), ids.len(), runtime.vocabulary()));
    Ok(Ended::Done)
}

/// Ids from a list `1,2,3` or a file with a JSON array.
fn ids(argument: &str) -> Result<Vec<u32>> {
    let list = argument.split(',').map(|id| id.trim().parse::<u32>()).collect::<Result<Vec<_>, _>>();
    let ids = match list {
        Ok(ids) => ids,
        Err(_) => {
            let text = std::fs::read_to_string(argument).with_context(|| {
                format!("--ids '{argument}' is neither a list like 1,2,3 nor a readable file")
            })?;
            serde_json::from_str(&text)
                .with_context(|| format!("{argument} is not a JSON array of token ids"))?
        }
    };
    if ids.is_empty() {
        bail!("--ids names no token");
    }
    Ok(ids)
}
