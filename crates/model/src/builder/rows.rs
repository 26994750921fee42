//! Tables whose rows stay on disk: their shards are looked up, compared and marked as used, never loaded.

use coldpress_experts::{RowShard, RowTable, row_format};
use coldpress_kernels::WeightFormat;

use super::SpecBuilder;
use crate::error::ModelError;

impl SpecBuilder<'_> {
    /// The table `name` of `rows` rows of `columns` values, cut into `shards` shards called `shard_name(index)`. Returns its
    /// number among the tables of the model.
    ///
    /// # Errors
    /// A shard is missing, has rows of another length or a type that cannot be looked up row by row; all of them together
    /// have another number of rows.
    pub fn row_table(
        &mut self,
        name: &str,
        rows: u64,
        columns: usize,
        shards: usize,
        shard_name: impl Fn(usize) -> String,
    ) -> Result<usize, ModelError> {
        let mut table =
            RowTable { name: name.to_owned(), format: WeightFormat::F32, columns, shards: Vec::new() };
        for index in 0..shards {
            let tensor = shard_name(index);
            let shard_rows = self.shape(&tensor)?.get(1).copied().unwrap_or(1).min(rows);
            let (info, format) = self.take(&tensor, &[columns, shard_rows as usize])?;
            if row_format(format).is_none() || (index > 0 && format != table.format) {
                return Err(self.unsupported(format!(
                    "{} is {format}; rows are looked up in tables of one type, F32, F16 or BF16",
                    info.name
                )));
            }
            table.format = format;
            table.shards.push(RowShard {
                name: info.name.clone(),
                file: info.file,
                offset: info.offset,
                rows: shard_rows,
            });
        }
        if table.rows() != rows {
            let found = table.rows();
            return Err(self.bad(format!("{name} has {found} rows in {shards} shards, wanted {rows}")));
        }
        self.row_tables.push(table);
        Ok(self.row_tables.len() - 1)
    }

    /// The tables that the family asked for.
    pub fn take_row_tables(&mut self) -> Vec<RowTable> {
        std::mem::take(&mut self.row_tables)
    }
}
