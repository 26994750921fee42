//! Which rows of a piece of a pass belong to which sequence, and recurrent states that go through them.

use std::ops::Range;

use coldpress_workers::Team;

use crate::forward::Segment;
use crate::kv::KvPool;

/// The rows of one segment within a piece.
pub(crate) struct SegmentRows<'s, 't> {
    pub segment: &'s Segment<'t>,
    /// Rows of the call; never empty.
    pub rows: Range<usize>,
    /// The first of them among the tokens of the segment.
    pub first_token: usize,
    /// Its position in the sequence.
    pub first_position: usize,
}

/// The segments that have rows in `piece`, in order. Segments lie one after the other in a call.
pub(crate) fn rows_of_segments<'s, 't>(
    segments: &'s [Segment<'t>],
    piece: &Range<usize>,
) -> impl Iterator<Item = SegmentRows<'s, 't>> + use<'s, 't> {
    let piece = piece.clone();
    let mut segment_end = 0;
    segments.iter().filter_map(move |segment| {
        let segment_start = segment_end;
        segment_end += segment.tokens.len();
        let rows = piece.start.max(segment_start)..piece.end.min(segment_end);
        let first_token = rows.start - segment_start;
        let first_position = segment.sequence.len() + first_token;
        (!rows.is_empty()).then_some(SegmentRows { segment, rows, first_token, first_position })
    })
}

/// Leads the states of `layer` through the rows of `piece`: `advance` gets the tokens of some rows, the rows counted from the piece's
/// first, and the state before them, which it advances. A state that is to be kept on the way is copied between two calls.
pub(crate) fn advance_states(
    pool: &mut KvPool,
    team: &Team<'_>,
    layer: usize,
    segments: &[Segment<'_>],
    piece: &Range<usize>,
    mut advance: impl FnMut(&[u32], Range<usize>, &mut [f32]),
) {
    for SegmentRows { segment, rows, first_token, first_position } in rows_of_segments(segments, piece) {
        let sequence = &*segment.sequence;
        if first_token == 0 {
            pool.begin_state(team, layer, sequence);
        }
        let tokens = &segment.tokens[first_token..first_token + rows.len()];
        let mut done = 0;
        while done < tokens.len() {
            let position = first_position + done;
            let asked = sequence.states.next_asked(position);
            let end = asked.map_or(tokens.len(), |asked| tokens.len().min(asked - first_position));
            let first = rows.start - piece.start;
            advance(&tokens[done..end], first + done..first + end, pool.next_state(layer, sequence));
            pool.keep_next_state(team, layer, sequence, first_position + end);
            done = end;
        }
    }
}
