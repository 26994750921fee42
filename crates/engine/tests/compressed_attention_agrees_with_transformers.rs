//! Attention over a window and compressed groups (DeepSeek-V4) beyond what all families are tested for: the published rates and a
//! text over three pages in a GGUF file, texts that are cut around every threshold, exact reads ahead, what is refused.
//!
//! What could go wrong: a group's row that depends on the pass that closed it, rows in the wrong page, a choice that sees groups of
//! the future, experts by token id that are asked for too late.

use coldpress::{ChoiceOrigin, GenerateOptions, KvType, LoadConfiguration, Prefetch, Residency, Silent};
use coldpress_formats::{GgufWriter, ModelFile, TensorType};

use crate::checkpoint::{Checkpoint, Reference, shared};
use crate::common::{load, logits, npy_f32};
use crate::families::{BOUND, BOUND_OF_EIGHT_BITS, bits, distance, exact, logits_of, refusal};

const NAME: &str = "deepseek_v4";

/// The ids that a GGUF twin was given.
fn ids_of(description: &std::path::Path) -> Vec<u32> {
    let text = std::fs::read_to_string(description).expect("a description");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(json["input_ids"].clone()).expect("a list of ids")
}

/// The values of MXFP4 blocks as GGUF has them: an exponent, then sixteen bytes with the codes of both halves.
fn floats_of(blocks: &[u8]) -> Vec<u8> {
    const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value = |code: u8| if code < 8 { VALUES[code as usize] } else { -VALUES[code as usize - 8] };
    let block = |block: &[u8]| {
        let scale = 2f32.powi(i32::from(block[0]) - 127);
        let low = block[1..].iter().map(|byte| byte & 15);
        let codes = low.chain(block[1..].iter().map(|byte| byte >> 4));
        codes.map(|code| value(code) * scale).collect::<Vec<f32>>()
    };
    blocks.chunks_exact(17).flat_map(block).flat_map(f32::to_le_bytes).collect()
}

#[test]
fn a_file_with_the_published_rates_agrees_over_three_pages() {
    let Some(path) = shared("oracle/gguf/deepseek4.gguf") else { return };
    let ids = ids_of(&path.with_extension("json"));
    let expected = npy_f32(&path.with_extension("logits.npy"));
    let exact = exact().context(256);
    // Activations of eight bits choose other experts at some positions, so most of them are looked at.
    let rounded = logits_of(&path, &exact, &ids);
    let vocabulary = expected.len() / ids.len();
    let rows = rounded.chunks_exact(vocabulary).zip(expected.chunks_exact(vocabulary));
    let near = rows.filter(|(got, wanted)| distance(got, wanted) < BOUND_OF_EIGHT_BITS).count();
    println!("deepseek4: {near} of {} positions are near", ids.len());
    assert!(near > ids.len() / 2, "deepseek4: {near} positions are near");

    // With the experts as floats nothing is rounded.
    let file = ModelFile::open(&path).expect("a good file");
    let bytes = std::fs::read(&path).expect("a file");
    let mut writer = GgufWriter::new();
    file.metadata().iter().for_each(|(name, stated)| {
        writer.metadata(name, stated.clone());
    });
    let mut contents = Vec::new();
    for info in file.tensors() {
        let data = &bytes[info.offset as usize..(info.offset + info.byte_len) as usize];
        let coded = info.tensor_type == TensorType::Mxfp4;
        let tensor_type = if coded { TensorType::F32 } else { info.tensor_type };
        writer.tensor(&info.name, tensor_type, &info.shape);
        contents.push((info.name.clone(), if coded { floats_of(data) } else { data.to_vec() }));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let floats = folder.path().join("floats.gguf");
    let content = |name: &str| &contents.iter().find(|(of, _)| of == name).expect("a planned tensor").1;
    writer.write(&floats, |info, out| out.write_all(content(&info.name))).expect("written");
    let resident = exact.clone().residency(Residency::Resident);
    let all = logits_of(&floats, &resident, &ids);
    let worst = distance(&all, &expected);
    println!("deepseek4 with experts as floats: largest difference {worst:e}");
    assert!(worst < BOUND, "deepseek4 with experts as floats: logits differ by {worst}");
    for chunk in [1, 63, 65, 127, 129] {
        let streamed = exact.clone().chunk_tokens(chunk).residency(Residency::Streamed).slots(4);
        assert!(bits(&logits_of(&floats, &streamed, &ids)) == bits(&all), "other bits in chunks of {chunk}");
    }
}

/// A text that takes another turn around the window, a group or the number of chosen groups goes on as if it had been new.
#[test]
fn a_text_that_was_cut_goes_on_as_a_new_one() {
    let Some(reference) = Reference::open(NAME) else { return };
    let folder = reference.linked("config.json");
    for kv_type in [KvType::F32, KvType::F16] {
        let mut runtime = load(folder.path(), &LoadConfiguration::default().kv_type(kv_type).context(128));
        let options = GenerateOptions { max_tokens: 12, ignore_eos: true, ..GenerateOptions::default() };
        for cut in [3, 4, 5, 7, 8, 9, 15, 16, 17, 19, 20, 21, 31, 32, 33] {
            let turned: Vec<u32> = reference.ids[..cut]
                .iter()
                .copied()
                .chain((0..20).map(|at| (cut as u32 * 7 + at * 31) % 280 + 3))
                .collect();
            let mut session = runtime.session().expect("the budget has room");
            runtime.generate(&mut session, &reference.ids, &options, &mut Silent).expect("generates");
            let again = runtime.generate(&mut session, &turned, &options, &mut Silent).expect("generates");
            assert!(again.tokens.len() == 12);
            let mut fresh = runtime.session().expect("the budget has room");
            let new = runtime.generate(&mut fresh, &turned, &options, &mut Silent).expect("generates");
            assert_eq!(again.tokens, new.tokens, "cut after {cut} tokens, {}", kv_type.name());
        }
    }
}

/// The experts of the first layers are known from the tokens: they are asked for before anything is computed, and none in vain.
#[test]
fn experts_by_token_id_are_read_ahead_and_all_are_used() {
    let Some(reference) = Reference::open(NAME) else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    // Two layers, both by token id, so that every read ahead is one of them.
    checkpoint.config["num_hidden_layers"] = 2.into();
    for list in ["layer_types", "mlp_layer_types"] {
        checkpoint.config[list].as_array_mut().expect("a list").truncate(2);
    }
    let later = ["layers.2.", "layers.3."];
    checkpoint.tensors.retain(|tensor| !later.iter().any(|layer| tensor.name.starts_with(layer)));
    let folder = checkpoint.write();
    let configuration =
        exact().residency(Residency::Streamed).slots(4).prefetch(Prefetch::On, ChoiceOrigin::Flag);
    let mut runtime = load(folder.path(), &configuration);
    let mut session = runtime.session().expect("the budget has room");
    let options = GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() };
    let answer =
        runtime.generate(&mut session, &reference.ids[..4], &options, &mut Silent).expect("generates");
    let experts = answer.experts.expect("a model with experts");
    println!("{experts:?}");
    assert!(experts.prefetched > 20, "{experts:?}");
    assert_eq!(experts.prefetch_used, experts.prefetched, "{experts:?}");
}

/// Keys that stand in two places of a configuration, changed in both.
#[test]
fn bases_and_the_rotated_part_count() {
    let Some(reference) = Reference::open(NAME) else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let changes: [&[(&str, serde_json::Value)]; 3] = [
        &[("/rope_theta", 500.0.into()), ("/rope_parameters/main/rope_theta", 500.0.into())],
        &[("/compress_rope_theta", 500.0.into()), ("/rope_parameters/compress/rope_theta", 500.0.into())],
        &[
            ("/partial_rotary_factor", 0.25.into()),
            ("/qk_rope_head_dim", 8.into()),
            ("/rope_parameters/main/partial_rotary_factor", 0.25.into()),
            ("/rope_parameters/compress/partial_rotary_factor", 0.25.into()),
        ],
    ];
    for change in changes {
        let mut other = checkpoint.clone();
        for (key, value) in change {
            *other.config.pointer_mut(key).expect("the key is there") = value.clone();
        }
        let found = distance(&logits_of(other.write().path(), &exact(), &reference.ids), &reference.logits);
        assert!(found > 10.0 * BOUND, "{change:?} changes logits by {found} only");
    }
}

/// Older and published configurations say the same with fewer words.
#[test]
fn published_spellings_give_the_same_bits() {
    let Some(reference) = Reference::open(NAME) else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    let expected = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    let config = checkpoint.config.as_object_mut().expect("an object");
    let compress = config["rope_parameters"]["compress"].clone();
    for key in
        ["rope_parameters", "layer_types", "mlp_layer_types", "compress_rates", "partial_rotary_factor"]
    {
        config.remove(key);
    }
    config.insert("compress_ratios".into(), serde_json::json!([0, 4, 16, 4, 0]));
    config.insert("num_hash_layers".into(), 2.into());
    config.insert("num_nextn_predict_layers".into(), 1.into());
    config.insert(
        "rope_scaling".into(),
        serde_json::json!({
            "type": "yarn",
            "factor": compress["factor"],
            "beta_fast": compress["beta_fast"],
            "beta_slow": compress["beta_slow"],
            "original_max_position_embeddings": compress["original_max_position_embeddings"],
        }),
    );
    let mut later = checkpoint.tensors[0].clone();
    later.name = "mtp.0.norm.weight".to_owned();
    checkpoint.tensors.push(later);
    let found = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    assert!(found == expected, "other bits");
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let Some(reference) = Reference::open(NAME) else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let mut kinds = checkpoint.clone();
    kinds.config["layer_types"][0] = "full_attention".into();
    assert!(refusal(&kinds).contains("full_attention"), "{}", refusal(&kinds));
    let mut scores = checkpoint.clone();
    scores.config["scoring_func"] = "sigmoid".into();
    assert!(refusal(&scores).contains("scoring_func"), "{}", refusal(&scores));
    let mut table = checkpoint.clone();
    table.tensor("layers.0.ffn.gate.tid2eid").bytes[16] = 8;
    assert!(refusal(&table).contains("tid2eid"), "{}", refusal(&table));
    let folder = reference.linked("config.json");
    let configuration = LoadConfiguration::default().kv_type(KvType::Q8).context(128);
    let refused = coldpress::plan(folder.path(), &configuration).map(|_| ()).expect_err("it has few bits");
    assert!(refused.to_string().contains("q8"), "{refused}");
}

/// Rows of the cache and buffers are planned as they are taken.
#[test]
fn the_plan_knows_rows_of_positions_and_of_groups() {
    let Some(reference) = Reference::open(NAME) else { return };
    let folder = reference.linked("config.json");
    for (kv_type, element) in [(KvType::F16, 2), (KvType::F32, 4)] {
        let configuration = LoadConfiguration::default().kv_type(kv_type).context(512);
        let plan = coldpress::plan(folder.path(), &configuration).expect("fits").plan;
        // Keys of 32; what the compressors read of a position; its share of the rows of 32 and 16 of its group.
        let (sparse, heavy) = (4 * 32 + 4 * 16 + 8 + 4, 2 * 32 + 2);
        let rows: u64 = 512 * (4 * 32 + 2 * sparse + heavy) * element;
        assert_eq!(plan.kv.0, rows.next_multiple_of(coldpress_memory::sys::page_size() as u64));
        let mut runtime = load(folder.path(), &configuration);
        assert!(!logits(&mut runtime, &reference.ids).is_empty());
        let used = runtime.status().ledger.used_for;
        let taken = |purpose: &str| used.iter().find(|(of, _)| of.name() == purpose).expect("a purpose").1;
        let (kv, scratch) = (taken("KV cache"), taken("scratch"));
        assert_eq!(plan.kv, kv);
        assert!(
            plan.scratch >= scratch && plan.scratch.0 as f64 <= scratch.0 as f64 * 1.05,
            "scratch planned {}, taken {scratch}",
            plan.scratch
        );
    }
}
