//! Llama 4 against float32 logits of transformers, from files that are written here with the weights of the reference.
//!
//! What could go wrong: chunks of positions that begin elsewhere, layers without positions that get some, a temperature that grows
//! one position too early, weights that multiply the result of an expert instead of its input, heads that are not of unit
//! size. The file at hand has chunks that its texts do not reach, so this test states smaller ones.

use std::path::PathBuf;

use coldpress::{GenerateOptions, KvType, LoadConfiguration, Residency, Silent};
use coldpress_formats::Value;
use tempfile::TempDir;

use crate::checkpoint::as_gguf::{self, Change};
use crate::checkpoint::{Checkpoint, Reference, Tensor, shared};
use crate::common::{load, logits, npy_f32};

/// Two implementations in float32 differ by about 3e-6 in such models.
const BOUND: f32 = 2e-5;
/// Experts of a layer, size of the residual stream, inner size of an expert.
const EXPERTS: usize = 8;
const HIDDEN: usize = 64;
const INNER: usize = 32;

/// Numbers of the file that are changed here.
#[derive(Clone, Copy)]
struct Numbers {
    chunk: u32,
    floor: u32,
    growth: f32,
    base: f32,
    epsilon: f32,
    used: u32,
}

const OF_THE_REFERENCE: Numbers =
    Numbers { chunk: 8, floor: 8, growth: 0.3, base: 500_000.0, epsilon: 1e-5, used: 1 };

fn exact() -> LoadConfiguration {
    LoadConfiguration::default().kv_type(KvType::F32).context(128)
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The matrices of one expert, `[in, out]` in the checkpoint, as rows of outputs: columns `first..first + out`.
fn rows_of(stack: &Tensor, expert: usize, inputs: usize, first: usize, outputs: usize) -> Vec<u8> {
    let width = *stack.shape.last().expect("a shape") as usize;
    let matrix = &stack.bytes[expert * inputs * width * 4..][..inputs * width * 4];
    let element = |output: usize, input: usize| &matrix[(input * width + first + output) * 4..][..4];
    (0..outputs)
        .flat_map(|output| (0..inputs).flat_map(move |input| element(output, input)))
        .copied()
        .collect()
}

/// The checkpoint with a matrix for every projection of every expert.
fn apart(checkpoint: &Checkpoint) -> Checkpoint {
    let mut result = Checkpoint { tensors: Vec::new(), ..checkpoint.clone() };
    for tensor in &checkpoint.tensors {
        let Some((layer, stack)) = tensor.name.split_once(".feed_forward.experts.") else {
            result.tensors.push(tensor.clone());
            continue;
        };
        for expert in 0..EXPERTS {
            let mut push = |matrix: &str, inputs: usize, first: usize, outputs: usize| {
                result.tensors.push(Tensor {
                    name: format!("{layer}.block_sparse_moe.experts.{expert}.{matrix}.weight"),
                    dtype: tensor.dtype.clone(),
                    shape: vec![outputs as u64, inputs as u64],
                    bytes: rows_of(tensor, expert, inputs, first, outputs),
                });
            };
            if stack == "down_proj" {
                push("w2", INNER, 0, HIDDEN);
            } else {
                push("w1", HIDDEN, 0, INNER);
                push("w3", HIDDEN, INNER, INNER);
            }
        }
    }
    result
}

/// Writes the checkpoint as a file with these numbers.
fn written(checkpoint: &Checkpoint, numbers: Numbers) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let count = |value: u32| Value::Uint32(value);
    let keys = [
        ("block_count", count(4)),
        ("context_length", count(512)),
        ("embedding_length", count(HIDDEN as u32)),
        ("feed_forward_length", count(96)),
        ("expert_feed_forward_length", count(INNER as u32)),
        ("expert_count", count(EXPERTS as u32)),
        ("expert_used_count", count(numbers.used)),
        ("interleave_moe_layer_step", count(2)),
        ("attention.head_count", count(4)),
        ("attention.head_count_kv", count(2)),
        ("attention.key_length", count(16)),
        ("attention.layer_norm_rms_epsilon", Value::Float32(numbers.epsilon)),
        ("attention.chunk_size", count(numbers.chunk)),
        ("attention.temperature_length", count(numbers.floor)),
        ("attention.temperature_scale", Value::Float32(numbers.growth)),
        ("rope.freq_base", Value::Float32(numbers.base)),
    ];
    as_gguf::write(&apart(checkpoint), &path, "llama4", &keys, &[], Change::Nothing);
    (folder, path)
}

fn logits_of(checkpoint: &Checkpoint, numbers: Numbers, how: &LoadConfiguration, ids: &[u32]) -> Vec<f32> {
    let (_folder, path) = written(checkpoint, numbers);
    logits(&mut load(&path, how), ids)
}

#[test]
fn logits_and_continuation_are_those_of_transformers() {
    let Some(reference) = Reference::open("llama4_text") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let (_folder, path) = written(&checkpoint, OF_THE_REFERENCE);
    let mut runtime = load(&path, &exact());
    let worst = distance(&logits(&mut runtime, &reference.ids), &reference.logits);
    println!("llama4: largest difference {worst:e}");
    assert!(worst < BOUND, "logits differ by {worst}");
    let mut session = runtime.session().expect("the budget has room");
    let max_tokens = reference.continuation.len();
    let options = GenerateOptions { max_tokens, ignore_eos: true, ..GenerateOptions::default() };
    let answer = runtime.generate(&mut session, &reference.ids, &options, &mut Silent).expect("generates");
    assert_eq!(answer.tokens, reference.continuation);

    let Some(file) = shared("oracle/gguf/llama4.gguf") else { return };
    let worst = distance(
        &logits(&mut load(&file, &exact()), &reference.ids),
        &npy_f32(&file.with_extension("logits.npy")),
    );
    println!("llama4.gguf: largest difference {worst:e}");
    assert!(worst < BOUND, "llama4.gguf: logits differ by {worst}");
}

#[test]
fn chunks_of_a_prompt_and_residency_change_no_bit() {
    let Some(reference) = Reference::open("llama4_text") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let run = |how: &LoadConfiguration| bits(&logits_of(&checkpoint, OF_THE_REFERENCE, how, &reference.ids));
    let expected = run(&exact().residency(Residency::Resident));
    for rows in [1, 7, 31, 32, 33, 64] {
        let streamed = exact().chunk_tokens(rows).residency(Residency::Streamed).slots(2);
        assert!(run(&streamed) == expected, "other bits in chunks of {rows}, streamed");
    }
}

#[test]
fn every_constant_and_number_counts() {
    let Some(reference) = Reference::open("llama4_text") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let run = |checkpoint: &Checkpoint, numbers| logits_of(checkpoint, numbers, &exact(), &reference.ids);
    let expected = run(&checkpoint, OF_THE_REFERENCE);
    let same = OF_THE_REFERENCE;
    let changed = [
        ("chunk", Numbers { chunk: 7, ..same }),
        ("chunk", Numbers { chunk: 9, ..same }),
        ("floor", Numbers { floor: 7, ..same }),
        ("floor", Numbers { floor: 9, ..same }),
        ("growth", Numbers { growth: 0.1, ..same }),
        ("base", Numbers { base: 500.0, ..same }),
        ("epsilon", Numbers { epsilon: 1e-2, ..same }),
        ("used", Numbers { used: 2, ..same }),
    ];
    for (name, numbers) in changed {
        let found = distance(&run(&checkpoint, numbers), &expected);
        assert!(found > 10.0 * BOUND, "another {name} changes logits by {found} only");
    }
    let constant =
        |tensor: &&Tensor| tensor.shape.len() == 1 || tensor.name.ends_with("feed_forward.router.weight");
    let names: Vec<&str> =
        checkpoint.tensors.iter().filter(constant).map(|tensor| tensor.name.as_str()).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let mut other = checkpoint.clone();
        other.tensor(name).map(|at, value| if at % 2 == 0 { value + 0.1 } else { value * 0.5 });
        let found = distance(&run(&other, same), &expected);
        assert!(found > 10.0 * BOUND, "{name} changes logits by {found} only");
    }
}

/// A chunk ends after its last position, and queries grow from the last position of the floor on.
#[test]
fn chunks_and_temperature_begin_where_they_say() {
    let Some(reference) = Reference::open("llama4_text") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let run =
        |numbers, count: usize| bits(&logits_of(&checkpoint, numbers, &exact(), &reference.ids[..count]));
    let none = Numbers { chunk: 500, floor: 500, ..OF_THE_REFERENCE };
    for (count, same) in [(15, true), (16, true), (17, false)] {
        let chunked = run(Numbers { chunk: 16, ..none }, count);
        assert_eq!(chunked == run(none, count), same, "{count} tokens in chunks of 16");
    }
    for (count, same) in [(14, true), (15, true), (16, false), (17, false)] {
        let tempered = run(Numbers { floor: 16, ..none }, count);
        assert_eq!(tempered == run(none, count), same, "{count} tokens with a floor of 16");
    }
}
