//! Files of every quantised type against the same values as F32, and files of mixed types against logits of another program.
//!
//! What could go wrong: a type that one of many places treats as another (dense matrices, the embedding, experts of three
//! projections), experts of a layer at the wrong distance, records of several sizes that share slots. That values and products
//! of a type are right is tested in the kernels' crate. All that differs is that activations are rounded to eight bits.

use std::path::{Path, PathBuf};

use coldpress::{GenerateOptions, PackUse, Residency, Silent};
use coldpress_formats::{ByteString, GgufWriter, ModelFile, TensorType, Value};
use coldpress_kernels::{WeightFormat, blocks::dequantize};
use coldpress_testkit::Random;

use crate::checkpoint::shared;
use crate::common::{fixture, load, logits, npy_f32};
use crate::families::{BOUND, BOUND_OF_EIGHT_BITS, bits, distance, exact, logits_of};

pub const HIDDEN: usize = 256;
pub const EXPERTS: usize = 4;
const VOCABULARY: usize = 288;
pub const IDS: [u32; 9] = [129, 47, 155, 71, 96, 142, 148, 153, 237];

/// A tensor of a made-up model.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub format: WeightFormat,
    /// Innermost dimension first.
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// Random blocks of `format` whose values have a root mean square of about `1 / sqrt(HIDDEN)`.
fn blocks(format: WeightFormat, count: usize, random: &mut Random) -> Vec<u8> {
    if format.is_float() {
        let limit = (3.0 / HIDDEN as f32).sqrt();
        let mut value = || (random.below(2001) as f32 / 1000.0 - 1.0) * limit;
        return match format {
            WeightFormat::F32 => (0..count).flat_map(|_| value().to_le_bytes()).collect(),
            WeightFormat::F16 => {
                (0..count).flat_map(|_| half::f16::from_f32(value()).to_le_bytes()).collect()
            }
            _ => (0..count).flat_map(|_| half::bf16::from_f32(value()).to_le_bytes()).collect(),
        };
    }
    let mut bytes = vec![0; format.row_bytes(count)];
    random.fill(&mut bytes);
    // 2^-20 where f16 scales are, so that the values tell what scale they need.
    set_scales(format, &mut bytes, 0x0010);
    let mut values = vec![0.0; count];
    dequantize(format, &bytes, &mut values);
    let squares = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let needed = (1.0 / HIDDEN as f64 / (squares / count as f64)).sqrt() * 2_f64.powi(-20);
    set_scales(format, &mut bytes, half::f16::from_f64(needed).to_bits());
    bytes
}

/// Writes the f16 scales and minimums of every block, or numbers of that size where a format has scales of another kind.
fn set_scales(format: WeightFormat, bytes: &mut [u8], scale: u16) {
    use WeightFormat::{Iq1M, Mxfp4, Nvfp4, Q2K, Q3K, Q4_1, Q4K, Q5_1, Q5K, Q6K, Tq1_0, Tq2_0};
    let fields: &[usize] = match format {
        Mxfp4 | Nvfp4 | Iq1M => &[],
        Q4_1 | Q5_1 | Q4K | Q5K => &[0, 2],
        Q2K => &[80, 82],
        Q3K => &[108],
        Q6K => &[208],
        Tq1_0 => &[52],
        Tq2_0 => &[64],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &field in fields {
            block[field..field + 2].copy_from_slice(&scale.to_le_bytes());
        }
        match format {
            Mxfp4 => block[0] = 121,
            Nvfp4 => block[..4].iter_mut().for_each(|scale| *scale = *scale % 8 + 8),
            Iq1M => {
                for part in 0..4 {
                    let upper = ((scale >> (4 * part)) as u8) << 4;
                    block[49 + 2 * part] = block[49 + 2 * part] & 0x0f | upper;
                }
            }
            _ => {}
        }
    }
}

/// A mixture of two layers whose matrices have the formats that `format` gives by name.
pub fn model(format: impl Fn(&str) -> WeightFormat) -> Vec<Tensor> {
    let mut random = Random::new(5);
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize]| {
        let count = shape.iter().product();
        let is_float = shape.len() == 1 || name.contains("gate_inp");
        let (format, bytes) = if is_float {
            let ones = shape.len() == 1;
            let value =
                |random: &mut Random| if ones { 1.0 } else { (random.below(2001) as f32 - 1000.0) / 16000.0 };
            (WeightFormat::F32, (0..count).flat_map(|_| value(&mut random).to_le_bytes()).collect())
        } else {
            (format(&name), blocks(format(&name), count, &mut random))
        };
        let shape = shape.iter().map(|&dimension| dimension as u64).collect();
        tensors.push(Tensor { name, format, shape, bytes });
    };
    add("token_embd.weight".into(), &[HIDDEN, VOCABULARY]);
    add("output.weight".into(), &[HIDDEN, VOCABULARY]);
    add("output_norm.weight".into(), &[HIDDEN]);
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| add(format!("blk.{layer}.{name}.weight"), shape);
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            add(name, &[HIDDEN, HIDDEN]);
        }
        add("attn_q_norm", &[64]);
        add("attn_k_norm", &[64]);
        add("attn_norm", &[HIDDEN]);
        add("ffn_norm", &[HIDDEN]);
        add("ffn_gate_inp", &[HIDDEN, EXPERTS]);
        for name in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            add(name, &[HIDDEN, HIDDEN, EXPERTS]);
        }
    }
    tensors
}

fn write(path: &Path, tensors: &[Tensor]) {
    write_with(path, tensors, None);
}

/// Writes tensors with the keys of the file `source`.
fn write_like(source: &Path, path: &Path, tensors: &[Tensor]) {
    let mut writer = GgufWriter::new();
    for (key, value) in ModelFile::open(source).expect("a file").metadata().iter() {
        writer.metadata(key, value.clone());
    }
    for tensor in tensors {
        writer.tensor(&tensor.name, tensor_type(tensor.format), &tensor.shape);
    }
    let bytes = |name: &str| &tensors.iter().find(|tensor| tensor.name == name).expect("planned").bytes;
    writer.write(path, |info, out| out.write_all(bytes(&info.name))).expect("written");
}

fn tensor_type(format: WeightFormat) -> TensorType {
    TensorType::from_name(format.name()).expect("a type of ggml")
}

/// The same with another tensor, of zeros.
fn write_with(path: &Path, tensors: &[Tensor], zeros: Option<(&str, TensorType, [u64; 3])>) {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String(ByteString("qwen3moe".into())));
    let other = ModelFile::open(fixture("qwen3moe.gguf")).expect("a fixture");
    for (key, value) in other.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        writer.metadata(key, value.clone());
    }
    // All experts of a layer are used, as a choice among close ones would turn rounding into another answer.
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 512),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", HIDDEN),
        ("expert_feed_forward_length", HIDDEN),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 64),
        ("attention.value_length", 64),
        ("expert_count", EXPERTS),
        ("expert_used_count", EXPERTS),
    ] {
        writer.metadata(format!("qwen3moe.{key}"), Value::Uint32(value as u32));
    }
    writer.metadata("qwen3moe.attention.layer_norm_rms_epsilon", Value::Float32(1e-5));
    writer.metadata("qwen3moe.rope.freq_base", Value::Float32(10000.0));
    for tensor in tensors {
        writer.tensor(&tensor.name, tensor_type(tensor.format), &tensor.shape);
    }
    if let Some((name, tensor_type, shape)) = zeros {
        writer.tensor(name, tensor_type, &shape);
    }
    let written =
        writer.write(path, |info, out| match tensors.iter().find(|tensor| tensor.name == info.name) {
            Some(tensor) => out.write_all(&tensor.bytes),
            None => out.write_all(&vec![0; info.byte_len as usize]),
        });
    written.expect("written");
}

/// The tensors of a file.
fn tensors_of(path: &Path) -> Vec<Tensor> {
    let file = ModelFile::open(path).expect("a file");
    let data = std::fs::read(path).expect("a file");
    let read = |tensor: &coldpress_formats::TensorInfo| Tensor {
        name: tensor.name.clone(),
        format: WeightFormat::ALL
            .into_iter()
            .find(|format| format.name() == tensor.tensor_type.name())
            .expect("every type of the file has kernels"),
        shape: tensor.shape.clone(),
        bytes: data[tensor.offset as usize..(tensor.offset + tensor.byte_len) as usize].to_vec(),
    };
    file.tensors().map(read).collect()
}

/// The same values as F32.
pub fn widened(tensors: &[Tensor]) -> Vec<Tensor> {
    let widen = |tensor: &Tensor| {
        let count = tensor.shape.iter().product::<u64>() as usize;
        let mut values = vec![0.0; count];
        dequantize(tensor.format, &tensor.bytes, &mut values);
        Tensor {
            name: tensor.name.clone(),
            format: WeightFormat::F32,
            shape: tensor.shape.clone(),
            bytes: values.into_iter().flat_map(f32::to_le_bytes).collect(),
        }
    };
    tensors.iter().map(widen).collect()
}

/// A file in a folder that goes away with it.
pub fn written(tensors: &[Tensor]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    write(&path, tensors);
    (folder, path)
}

pub fn spread(values: &[f32]) -> f32 {
    (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
}

#[test]
fn every_type_gives_the_logits_of_its_values() {
    for format in WeightFormat::ALL.into_iter().filter(|format| format.takes_int8()) {
        let tensors = model(|_| format);
        let (_folder, quantised) = written(&tensors);
        let (_twin, floats) = written(&widened(&tensors));
        let expected = logits_of(&floats, &exact(), &IDS);
        let got = logits_of(&quantised, &exact(), &IDS);
        let (worst, spread) = (distance(&got, &expected), spread(&expected));
        println!("{format}: largest difference {worst:e}, logits of {spread}");
        assert!(spread > 0.3, "{format}: logits of {spread} say little");
        assert!(worst < BOUND_OF_EIGHT_BITS * spread.max(1.0), "{format}: logits differ by {worst}");
    }
}

/// Another type for every projection and layer: records of two sizes, the larger in few slots.
fn mixed(name: &str) -> WeightFormat {
    use WeightFormat as W;
    match name.trim_end_matches(".weight") {
        "token_embd" => W::Q3K,
        "output" => W::Q6K,
        "blk.0.ffn_gate_exps" => W::Iq2Xxs,
        "blk.0.ffn_up_exps" => W::Iq3Xxs,
        "blk.0.ffn_down_exps" => W::Q2K,
        "blk.1.ffn_gate_exps" => W::Iq4Xs,
        "blk.1.ffn_up_exps" => W::Nvfp4,
        "blk.1.ffn_down_exps" => W::Tq1_0,
        name if name.ends_with("attn_v") => W::Iq2S,
        _ => W::Iq4Nl,
    }
}

#[test]
fn types_that_change_within_a_layer_share_slots_and_packs() {
    let (folder, file) = written(&model(mixed));
    let expected = bits(&logits_of(&file, &exact().residency(Residency::Resident), &IDS));
    for slots in [1, 3] {
        for chunk in [1, 4, 64] {
            let streamed = exact().residency(Residency::Streamed).slots(slots).chunk_tokens(chunk);
            let got = bits(&logits_of(&file, &streamed, &IDS));
            assert!(got == expected, "other bits with {slots} slots in chunks of {chunk}");
        }
    }
    for start in ["written", "read"] {
        let packed = exact().slots(2).pack(PackUse::BuildIfAbsent(folder.path().join("packs")));
        assert!(
            bits(&logits_of(&file, &packed, &IDS)) == expected,
            "other bits with a pack that was {start}"
        );
    }
}

/// Old files have a tensor for each expert, some newer ones gate and up in one: the same blocks, so the same bits. Up begins at a row of
/// the type.
#[test]
fn experts_apart_and_fused_give_the_bits_of_stacked_ones_in_every_type() {
    for format in WeightFormat::ALL {
        let stacked = model(|name| if name.contains("down") { WeightFormat::Q3K } else { format });
        let expected = bits(&logits_of(&written(&stacked).1, &exact(), &IDS));
        for (case, tensors) in [("apart", apart(&stacked)), ("fused", fused(&stacked))] {
            let (_folder, file) = written(&tensors);
            let got = bits(&logits_of(&file, &exact().slots(2), &IDS));
            assert!(got == expected, "{format}: other bits from experts that are {case}");
        }
    }
}

/// Rows of the embedding are the values of its type, so they have the bits of the same values as F32; a head that is tied to it is the
/// head that is stored once more.
#[test]
fn embeddings_and_tied_heads_in_every_type() {
    for format in WeightFormat::ALL {
        let embedded = |name: &str| if name.starts_with("token_embd") { format } else { WeightFormat::F32 };
        let tensors = model(embedded);
        let run = |tensors: &[Tensor]| bits(&logits_of(&written(tensors).1, &exact(), &IDS));
        assert!(run(&tensors) == run(&widened(&tensors)), "{format}: other bits than its values");
        let mut tied = tensors.clone();
        tied.retain(|tensor| tensor.name != "output.weight");
        let mut twice = tied.clone();
        twice.push(Tensor { name: "output.weight".into(), ..tensors[0].clone() });
        let (_folder, file) = written(&tied);
        assert!(
            bits(&logits_of(&file, &exact(), &IDS)) == run(&twice),
            "{format}: a tied head is another one"
        );
        let bytes = |path: &Path| coldpress::plan(path, &exact()).expect("fits").plan.dense.0;
        let head = written(&twice);
        assert!(bytes(&file) < bytes(&head.1), "{format}: a tied head is held once");
    }
}

fn apart(tensors: &[Tensor]) -> Vec<Tensor> {
    let mut result = Vec::new();
    for tensor in tensors {
        let part = tensor.name.strip_suffix("_exps.weight");
        let count = if part.is_some() { EXPERTS } else { 1 };
        for (expert, bytes) in tensor.bytes.chunks_exact(tensor.bytes.len() / count).enumerate() {
            let name = part.map_or(tensor.name.clone(), |part| format!("{part}.{expert}.weight"));
            let shape = if part.is_some() { tensor.shape[..2].to_vec() } else { tensor.shape.clone() };
            result.push(Tensor { name, format: tensor.format, shape, bytes: bytes.to_vec() });
        }
    }
    result
}

pub fn fused(tensors: &[Tensor]) -> Vec<Tensor> {
    let mut result = Vec::new();
    for tensor in tensors {
        let mut tensor = tensor.clone();
        if tensor.name.contains("ffn_up_exps") {
            continue;
        }
        if tensor.name.contains("ffn_gate_exps") {
            let up = tensor.name.replace("gate", "up");
            let up = tensors.iter().find(|other| other.name == up).expect("every gate has its up");
            let one = tensor.bytes.len() / EXPERTS;
            let both = tensor.bytes.chunks_exact(one).zip(up.bytes.chunks_exact(one));
            tensor.bytes = both.flat_map(|(gate, up)| [gate, up].concat()).collect();
            tensor.name = tensor.name.replace("ffn_gate_exps", "ffn_gate_up_exps");
            tensor.shape[1] *= 2;
        }
        result.push(tensor);
    }
    result
}

/// Files that llama.cpp loads too, with logits that transformers computed from their dequantised values.
#[test]
fn files_of_mixed_types_give_the_logits_of_the_reference() {
    for name in ["qwen3moe-kquant", "qwen3moe-iq2"] {
        let Some(file) = shared(&format!("oracle/gguf/{name}.gguf")) else { continue };
        let expected = npy_f32(&file.with_extension("logits.npy"));
        let text = std::fs::read_to_string(file.with_extension("json")).expect("a reference has its ids");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let list = |key: &str| -> Vec<u32> { serde_json::from_value(json[key].clone()).expect("ids") };
        let ids = list("input_ids");
        // The same keys, the values of the tensors as F32: nothing is rounded.
        let twin = tempfile::tempdir().expect("a folder");
        let twin = twin.path().join("model.gguf");
        write_like(&file, &twin, &widened(&tensors_of(&file)));
        let exact_logits = logits_of(&twin, &exact(), &ids);
        let worst = distance(&exact_logits, &expected);
        println!("{name}: largest difference of its values {worst:e}");
        assert!(worst < BOUND, "{name}: logits of its values differ by {worst}");
        let mut runtime = load(&file, &exact());
        let got = logits(&mut runtime, &ids);
        let differences: Vec<f32> = got.iter().zip(&expected).map(|(a, b)| a - b).collect();
        // The largest of 13824 differences is four to five times their root mean square.
        let (worst, difference) = (distance(&got, &expected), spread(&differences));
        println!("{name}: largest difference {worst:e}, root mean square {difference:e}");
        assert!(difference < BOUND_OF_EIGHT_BITS / 4.0, "{name}: logits differ by {difference}");
        for chunk in [1, 7] {
            let streamed = exact().residency(Residency::Streamed).slots(2).chunk_tokens(chunk);
            assert!(bits(&logits_of(&file, &streamed, &ids)) == bits(&got), "{name}: chunks of {chunk}");
        }
        let continuation = list("greedy_continuation");
        let mut session = runtime.session().expect("the budget has room");
        let options = GenerateOptions {
            max_tokens: continuation.len(),
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        let answer = runtime.generate(&mut session, &ids, &options, &mut Silent).expect("generates");
        assert_eq!(answer.tokens, continuation, "{name}: greedy continuation");
    }
}

/// Types of intermediate results, and those that nobody writes yet: named, with what to do.
#[test]
fn types_without_kernels_are_refused_by_name() {
    for (tensor_type, name) in
        [(TensorType::Q8_1, "Q8_1"), (TensorType::Q8K, "Q8_K"), (TensorType::Q1_0, "Q1_0")]
    {
        let mut tensors = model(|_| WeightFormat::Q8_0);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        let replaced = "blk.1.ffn_up_exps.weight";
        tensors.retain(|tensor| tensor.name != replaced);
        let shape = [HIDDEN as u64, HIDDEN as u64, EXPERTS as u64];
        write_with(&path, &tensors, Some((replaced, tensor_type, shape)));
        let error = match coldpress::Runtime::load(&path, &exact(), &mut Silent) {
            Ok(_) => panic!("{name} was loaded"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(replaced) && error.contains(name), "{error}");
        assert!(error.contains("convert the file to") && error.contains("IQ2_XXS"), "{error}");
    }
}
