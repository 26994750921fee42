//! Causal grouped-query attention over a KV cache in pages.
//!
//! Owns the product of queries, cached keys and cached values. Keys are visited in position order, in blocks
//! of 64 (a page each) and spans of 512 at fixed positions, with an online softmax (FlashAttention-2, Dao 2023,
//! arXiv:2307.08691); spans are merged in order. So the result of a query is a function of that query and of
//! the keys it sees, bit for bit: it does not depend on the rows beside it, on where pages lie, on the threads
//! or on the instruction set. Refuses to allocate: the caller brings scratch memory of
//! [`AttentionShape::scratch_len`].
//! `schedule.rs` deals the work to threads, `span.rs` is the definition of the result. What sparse attention needs beside it:
//! `index_scores.rs`, `choose.rs`.

mod block;
mod choose;
mod index_scores;
mod quantized;
mod schedule;
mod span;
mod state;
mod tile;

use coldpress_workers::Team;
use half::f16;

use crate::Kernels;

pub use choose::Chooser;
pub use index_scores::{IndexScores, index_scores, index_scratch_len};
pub use quantized::{BLOCK_NUMBERS, BlockQ4, BlockQ8, quantize_q4, quantize_q8};

/// Positions of a page of the cache.
pub const PAGE_POSITIONS: usize = 64;
/// Keys of a block: scores of one block are in memory at a time. A page is a block, so that keys and values of a
/// block lie together wherever the page is.
const BLOCK_KEYS: usize = PAGE_POSITIONS;
/// Most query heads of a part: enough to pay for unpacking a block of keys even with a single row.
const PART_HEADS: usize = 16;
/// Keys of a span: the unit that may run on a thread of its own.
const SPAN_KEYS: usize = 8 * BLOCK_KEYS;

/// The elements of a pool of pages: numbers, or blocks of them.
#[derive(Clone, Copy, Debug)]
pub enum KvElements<'a> {
    /// Half precision.
    F16(&'a [f16]),
    /// Single precision.
    F32(&'a [f32]),
    /// Blocks of 32 numbers of one head.
    Q8(&'a [BlockQ8]),
    /// The same in four bits.
    Q4(&'a [BlockQ4]),
}

impl KvElements<'_> {
    fn len(&self) -> usize {
        match self {
            KvElements::F16(elements) => elements.len(),
            KvElements::F32(elements) => elements.len(),
            KvElements::Q8(blocks) => blocks.len(),
            KvElements::Q4(blocks) => blocks.len(),
        }
    }

    /// Numbers of one element.
    const fn numbers(&self) -> usize {
        match self {
            KvElements::F16(_) | KvElements::F32(_) => 1,
            KvElements::Q8(_) | KvElements::Q4(_) => BLOCK_NUMBERS,
        }
    }
}

/// The cached keys and values of one layer of one sequence, in pages of [`PAGE_POSITIONS`] positions anywhere in a
/// pool.
#[derive(Clone, Copy, Debug)]
pub struct KvRows<'a> {
    /// Pages of `page_elements` elements, one after the other.
    pub pool: KvElements<'a>,
    /// Where the sequence lies: positions `64 * i .. 64 * (i + 1)` are in page `pages[i]`.
    pub pages: &'a [u32],
    /// Elements of a page, all layers.
    pub page_elements: usize,
    /// Element of a page where the layer's keys begin, `[PAGE_POSITIONS, kv_heads * head_dim]` numbers.
    pub keys_offset: usize,
    /// Element of a page where the layer's values begin, of the same shape.
    pub values_offset: usize,
}

impl KvRows<'_> {
    /// Positions that the page table covers.
    fn positions(&self) -> usize {
        self.pages.len() * PAGE_POSITIONS
    }

    /// Whether all pages are in the pool and hold rows of `row` numbers.
    fn fits(&self, row: usize) -> bool {
        let last_offset = self.keys_offset.max(self.values_offset);
        let row = row / self.pool.numbers();
        let pages = self.pool.len() / self.page_elements.max(1);
        last_offset + PAGE_POSITIONS * row <= self.page_elements
            && self.pages.iter().all(|&page| (page as usize) < pages)
    }
}

/// Heads of an attention layer. Query head `h` reads KV head `h / (heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of one head; any number above zero.
    pub head_dim: usize,
}

impl AttentionShape {
    /// Elements of a query row and of an output row.
    pub const fn query_row_len(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of a key row and of a value row.
    pub const fn kv_row_len(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements (f32) of scratch memory that are enough for calls with up to `rows` query rows on a team of
    /// up to `threads`. Depends on nothing else: not on positions, window or cache type. It stops growing
    /// with `rows` at the largest block of rows that one thread takes.
    pub fn scratch_len(&self, rows: usize, threads: usize) -> usize {
        schedule::scratch_len(self, rows, threads)
    }

    /// Query heads per KV head.
    const fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Parts that the query heads of a KV head are dealt out in, so that few KV heads keep many threads busy.
    const fn parts(&self) -> usize {
        self.group().div_ceil(PART_HEADS)
    }

    /// Query heads of a part; the last one may have fewer.
    const fn part_heads(&self) -> usize {
        self.group().div_ceil(self.parts())
    }
}

/// One attention call; see [`attention`].
#[derive(Debug)]
pub struct Attention<'a> {
    /// Heads of the layer.
    pub shape: AttentionShape,
    /// `[rows, heads * head_dim]`, after norms and rotary embedding.
    pub query: &'a [f32],
    /// Position of the first query row; row `r` sees positions up to `first_position + r`.
    pub first_position: usize,
    /// Pages for at least `first_position + rows` positions; later ones are not read.
    pub cache: KvRows<'a>,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Sliding window: a row sees this many positions at most, itself included.
    pub window: Option<usize>,
    /// Positions are cut into chunks of this many; a row sees those of its own chunk.
    pub chunk: Option<usize>,
    /// One logit per query head that takes part in the softmax without a value (gpt-oss attention sinks).
    pub sinks: Option<&'a [f32]>,
    /// `[rows, heads * head_dim]`.
    pub out: &'a mut [f32],
    /// At least [`AttentionShape::scratch_len`] elements; contents do not matter.
    pub scratch: &'a mut [f32],
}

/// `out[row, head] = sum over visible positions p of softmax_p(scale * query[row, head] . keys[p]) *
/// values[p]`.
///
/// With `e = 2^-24`, `d = head_dim`, `k` visible keys, `D = scale * max_p(sum_i |query_i * keys_pi|)` and `V
/// = max_p |values_p|`, an output is within `V * (2 * (d + 8) * D + 2 * k + 40) * e` of the exact result: `d`
/// products, the scaling, the distances to the running maximum and their exp move the exponent of a weight by
/// `(d + 8) * D * e` at most, and the sums over `k` keys round less than `2 * k + 40` times. Typical errors
/// are near `e`. A score that is NaN or +inf makes the outputs of its row and head NaN and touches no other.
///
/// Panics when the shape, a length, the window (0) or the chunk (0) does not fit.
pub fn attention(team: &Team<'_>, kernels: Kernels, attention: Attention<'_>) {
    let Attention { shape, query, first_position, cache, scale, window, chunk, sinks, out, scratch } =
        attention;
    assert!(shape.head_dim > 0 && shape.kv_heads > 0, "attention needs heads: {shape:?}");
    assert!(shape.heads > 0 && shape.heads.is_multiple_of(shape.kv_heads), "heads are not groups: {shape:?}");
    assert!(query.len().is_multiple_of(shape.query_row_len()), "query of {} for {shape:?}", query.len());
    assert_eq!(query.len(), out.len(), "attention output and query differ in length");
    assert!(sinks.is_none_or(|sinks| sinks.len() == shape.heads), "one attention sink per query head");
    assert!(window != Some(0), "an attention window of 0 sees nothing");
    assert!(chunk != Some(0), "a chunk of 0 positions has none");
    let rows = query.len() / shape.query_row_len();
    let positions = first_position.checked_add(rows).expect("positions fit usize");
    assert!(
        cache.positions() >= positions,
        "{} pages are fewer than {positions} positions need",
        cache.pages.len()
    );
    let numbers = cache.pool.numbers();
    assert!(shape.head_dim.is_multiple_of(numbers), "heads of {} in blocks of {numbers}", shape.head_dim);
    assert!(cache.fits(shape.kv_row_len()), "a page lies outside the pool or is too small for {shape:?}");
    let needed = shape.scratch_len(rows, team.threads());
    assert!(scratch.len() >= needed, "attention scratch of {} where {needed} are needed", scratch.len());
    let problem = span::Problem { shape, query, first_position, cache, scale, window, chunk, sinks };
    schedule::run(team, kernels, &problem, rows, out, scratch);
}
