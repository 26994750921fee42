//! Writes a GGUF file again with other weight formats; made `models/demo.gguf`.
//!
//! usage: cargo run --release -p coldpress --example requantize -- IN.gguf OUT.gguf EXPERTS REST
//! EXPERTS is the format of the routed experts, REST of the other matrices: F16, Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0.
//! Tensors stored as F32 (norms, routers) stay as they are. One tensor is in memory at a time.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use coldpress_experts::weight_format;
use coldpress_formats::{GgufWriter, ModelFile, TensorInfo, TensorType};
use coldpress_kernels::blocks::{dequantize, quantize};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, experts, rest] = arguments.as_slice() else {
        return Err("usage: requantize IN.gguf OUT.gguf EXPERTS REST".into());
    };
    let format = |name: &str| TensorType::from_name(name).ok_or_else(|| format!("unknown format {name}"));
    let (experts, rest) = (format(experts)?, format(rest)?);
    let model = ModelFile::open(Path::new(input))?;
    let mut writer = GgufWriter::new();
    for (key, value) in model.metadata().iter() {
        writer.metadata(key, value.clone());
    }
    for tensor in model.tensors() {
        writer.tensor(&tensor.name, target(tensor, experts, rest), &tensor.shape);
    }
    let files = model.files().iter().map(|file| File::open(&file.path)).collect::<Result<Vec<_>, _>>()?;
    writer.write(Path::new(output), |target, out| {
        let source =
            model.tensor(&target.name).ok_or_else(|| std::io::Error::other("the tensor was planned"))?;
        let mut bytes = vec![0; usize::try_from(source.byte_len).map_err(std::io::Error::other)?];
        files[source.file].read_exact_at(&mut bytes, source.offset)?;
        if source.tensor_type != target.tensor_type {
            bytes = convert(source, target, &bytes).map_err(std::io::Error::other)?;
        }
        out.write_all(&bytes)
    })?;
    Ok(())
}

fn target(tensor: &TensorInfo, experts: TensorType, rest: TensorType) -> TensorType {
    match tensor.tensor_type {
        TensorType::F32 => TensorType::F32,
        _ if tensor.name.contains("_exps.") => experts,
        _ => rest,
    }
}

fn convert(source: &TensorInfo, target: &TensorInfo, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let known = |tensor: &TensorInfo| {
        weight_format(tensor.tensor_type)
            .ok_or_else(|| format!("cannot convert {}", tensor.tensor_type.name()))
    };
    let mut values = vec![0.0; source.elements() as usize];
    dequantize(known(source)?, bytes, &mut values);
    let mut out = vec![0; target.byte_len as usize];
    quantize(known(target)?, &values, &mut out).map_err(|error| error.to_string())?;
    Ok(out)
}
