//! Writing a two-dimensional f32 array as a NumPy .npy file, version 1.0, row by row.
//!
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. The file appears under its name only
//! when it is complete.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use coldpress::begins_with;

/// An array that is being written.
pub struct NpyWriter {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    columns: usize,
    rows_left: usize,
}

/// What every .npy file begins with.
const MAGIC: &[u8] = b"\x93NUMPY";

impl NpyWriter {
    /// Starts an array of `rows` x `columns`.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, rows: usize, columns: usize) -> Result<Self> {
        if path.exists() && !begins_with(path, MAGIC) {
            bail!("{} exists and is not a .npy file: it is not overwritten", path.display());
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".partial");
        let temporary = PathBuf::from(temporary);
        let context = || format!("cannot write {}", temporary.display());
        let mut file = BufWriter::new(File::create(&temporary).with_context(context)?);
        let mut header =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
        // Magic, version and length take 10 bytes; the whole header is a multiple of 64 and ends in a newline.
        let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
        header.push_str(&" ".repeat(padded - 1 - header.len()));
        header.push('\n');
        let length = u16::try_from(header.len()).expect("a two-dimensional header is short");
        file.write_all(MAGIC).with_context(context)?;
        file.write_all(b"\x01\x00").with_context(context)?;
        file.write_all(&length.to_le_bytes()).with_context(context)?;
        file.write_all(header.as_bytes()).with_context(context)?;
        Ok(Self { file, temporary, path: path.to_owned(), columns, rows_left: rows })
    }

    /// Appends one row.
    ///
    /// # Errors
    /// The disk refuses it.
    pub fn row(&mut self, values: &[f32]) -> Result<()> {
        ensure!(
            values.len() == self.columns && self.rows_left > 0,
            "a row that does not belong to the array"
        );
        self.rows_left -= 1;
        for value in values {
            self.file
                .write_all(&value.to_le_bytes())
                .with_context(|| format!("cannot write {}", self.temporary.display()))?;
        }
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// Rows are missing, or the disk refuses the rest.
    pub fn finish(mut self) -> Result<()> {
        ensure!(self.rows_left == 0, "{} rows of {} are missing", self.rows_left, self.path.display());
        self.file.flush().with_context(|| format!("cannot write {}", self.temporary.display()))?;
        std::fs::rename(&self.temporary, &self.path)
            .with_context(|| format!("cannot rename {} to {}", self.temporary.display(), self.path.display()))
    }
}
