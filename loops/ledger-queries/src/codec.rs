//! How arrays and small records lie in blobs: little-endian, without padding, read back exactly.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use hone_domain::{PolicyVersion, Sampling, SamplingMask, Token, VersionSpan};

/// Why bytes are not what they should be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(&'static str);

/// Tokens as u32.
pub fn tokens_to_bytes(tokens: &[Token]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// The inverse of [`tokens_to_bytes`].
pub fn tokens_from_bytes(bytes: &[u8]) -> Result<Vec<Token>, Malformed> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Malformed("a token array of broken length"));
    }
    Ok(words.iter().map(|w| Token::from_le_bytes(*w)).collect())
}

/// Numbers as f32, bit for bit.
pub fn floats_to_bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The inverse of [`floats_to_bytes`].
pub fn floats_from_bytes(bytes: &[u8]) -> Result<Vec<f32>, Malformed> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Malformed("a number array of broken length"));
    }
    Ok(words.iter().map(|w| f32::from_le_bytes(*w)).collect())
}

/// Version spans: (u64 version, u32 start, u32 end) each.
pub fn spans_to_bytes(spans: &[VersionSpan]) -> Vec<u8> {
    let mut out = Vec::with_capacity(spans.len() * 16);
    for span in spans {
        out.extend(span.version.0.to_le_bytes());
        out.extend(span.start.to_le_bytes());
        out.extend(span.end.to_le_bytes());
    }
    out
}

/// The inverse of [`spans_to_bytes`].
pub fn spans_from_bytes(bytes: &[u8]) -> Result<Vec<VersionSpan>, Malformed> {
    let mut reader = Reader(bytes);
    let mut spans = Vec::with_capacity(bytes.len() / 16);
    while !reader.0.is_empty() {
        spans.push(VersionSpan {
            version: PolicyVersion(u64::from_le_bytes(reader.take()?)),
            start: u32::from_le_bytes(reader.take()?),
            end: u32::from_le_bytes(reader.take()?),
        });
    }
    Ok(spans)
}

/// Kept sets: per token a variable-length count plus one (0 where nothing was cut), then the
/// differences between neighbouring ids, zigzag, variable length. Order is kept. A set that is
/// mostly runs of neighbouring ids (a few tokens banned from a whole vocabulary) is written as
/// [`RUNS`], the number of runs, and per run the difference of its first id to the last one
/// before and its length. A set that an earlier token has too is [`SAME`] and how many others were
/// written before that one. None where no token has a set, which is the usual case.
pub fn kept_to_bytes(kept: &[Option<SamplingMask>]) -> Option<Vec<u8>> {
    if kept.iter().all(Option::is_none) {
        return None;
    }
    let mut out = Vec::new();
    let mut written = HashMap::new();
    for set in kept {
        let Some(set) = set else {
            out.push(0);
            continue;
        };
        let number = written.len() as u64;
        match written.entry(SamplingMask::as_ptr(set)) {
            Entry::Vacant(new) => _ = new.insert(number),
            Entry::Occupied(same) => {
                push_varint(&mut out, SAME + same.get());
                continue;
            }
        }
        let runs = runs_of(set);
        if set.is_empty() || 2 * runs.len() + 2 < set.len() {
            push_runs(&mut out, &runs);
            continue;
        }
        push_varint(&mut out, set.len() as u64 + 1);
        let mut before = 0i64;
        for id in set.iter() {
            push_step(&mut out, i64::from(*id) - before);
            before = i64::from(*id);
        }
    }
    Some(out)
}

/// Marks a set of runs: no set is empty, so its count plus one is never 1.
const RUNS: u64 = 1;
/// Most ids in one set, far above every vocabulary: a broken length cannot ask for much memory.
const SET_IDS_MAX: u64 = 1 << 22;
/// From here on counts name earlier sets.
const SAME: u64 = SET_IDS_MAX + 2;

fn push_step(out: &mut Vec<u8>, step: i64) {
    push_varint(out, ((step << 1) ^ (step >> 63)) as u64);
}

fn step_of(read: u64) -> i64 {
    ((read >> 1) as i64) ^ -((read & 1) as i64)
}

/// First ids and lengths of runs of neighbouring ids.
fn runs_of(set: &[Token]) -> Vec<(Token, u64)> {
    let mut runs: Vec<(Token, u64)> = Vec::new();
    for id in set {
        match runs.last_mut() {
            Some((first, length)) if u64::from(*first) + *length == u64::from(*id) => *length += 1,
            _ => runs.push((*id, 1)),
        }
    }
    runs
}

fn push_runs(out: &mut Vec<u8>, runs: &[(Token, u64)]) {
    push_varint(out, RUNS);
    push_varint(out, runs.len() as u64);
    let mut before = 0i64;
    for (first, length) in runs {
        push_step(out, i64::from(*first) - before);
        push_varint(out, *length);
        before = i64::from(*first) + *length as i64 - 1;
    }
}

fn read_runs(reader: &mut Reader<'_>) -> Result<Vec<Token>, Malformed> {
    let (count, mut set, mut before) = (reader.varint()?, Vec::new(), 0i64);
    for _ in 0..count {
        let first = before.wrapping_add(step_of(reader.varint()?));
        let length = reader.varint()?;
        if length == 0 || length.saturating_add(set.len() as u64) > SET_IDS_MAX {
            return Err(Malformed("a run of kept ids of an impossible length"));
        }
        let end = first.checked_add(length as i64);
        let ids = first..end.ok_or(Malformed("a kept id that is no token"))?;
        for id in ids {
            set.push(Token::try_from(id).map_err(|_| Malformed("a kept id that is no token"))?);
            before = id;
        }
    }
    Ok(set)
}

/// The inverse of [`kept_to_bytes`] for `n` tokens.
pub fn kept_from_bytes(
    bytes: Option<&[u8]>,
    n: usize,
) -> Result<Vec<Option<SamplingMask>>, Malformed> {
    let Some(bytes) = bytes else {
        return Ok(vec![None; n]);
    };
    let mut reader = Reader(bytes);
    let mut kept = Vec::with_capacity(n);
    let mut read: Vec<SamplingMask> = Vec::new();
    for _ in 0..n {
        let count = reader.varint()?;
        if count == 0 {
            kept.push(None);
            continue;
        }
        if let Some(number) = count.checked_sub(SAME) {
            let same = usize::try_from(number).ok().and_then(|at| read.get(at));
            kept.push(Some(SamplingMask::clone(
                same.ok_or(Malformed("a kept set that names none before it"))?,
            )));
            continue;
        }
        let set = match count {
            RUNS => read_runs(&mut reader)?,
            _ => read_ids(&mut reader, count - 1)?,
        };
        read.push(SamplingMask::from(set));
        kept.push(read.last().cloned());
    }
    reader.end()?;
    Ok(kept)
}

fn read_ids(reader: &mut Reader<'_>, count: u64) -> Result<Vec<Token>, Malformed> {
    // A set of k ids takes at least k bytes, so a broken count cannot ask for much memory.
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= reader.0.len())
        .ok_or(Malformed("a kept set longer than its bytes"))?;
    let mut set = Vec::with_capacity(count);
    let mut id = 0i64;
    for _ in 0..count {
        id = id.wrapping_add(step_of(reader.varint()?));
        set.push(Token::try_from(id).map_err(|_| Malformed("a kept id that is no token"))?);
    }
    Ok(set)
}

/// Bytes of one id in [`experts_to_bytes`].
const ONE_BYTE: u8 = 1;
const TWO_BYTES: u8 = 2;

/// Ids of experts: how many bytes each takes, then the ids. None where there are none.
pub fn experts_to_bytes(ids: &[u16]) -> Option<Vec<u8>> {
    let most = *ids.iter().max()?;
    let mut out = Vec::new();
    if most <= u16::from(u8::MAX) {
        out.push(ONE_BYTE);
        out.extend(ids.iter().map(|id| *id as u8));
    } else {
        out.push(TWO_BYTES);
        out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    }
    Some(out)
}

/// The inverse of [`experts_to_bytes`].
pub fn experts_from_bytes(bytes: Option<&[u8]>) -> Result<Vec<u16>, Malformed> {
    match bytes {
        None => Ok(Vec::new()),
        Some([ONE_BYTE, ids @ ..]) => Ok(ids.iter().map(|id| u16::from(*id)).collect()),
        Some([TWO_BYTES, ids @ ..]) if ids.len().is_multiple_of(2) => {
            let pairs = ids.chunks_exact(2);
            Ok(pairs.map(|id| u16::from_le_bytes([id[0], id[1]])).collect())
        }
        Some(_) => Err(Malformed("experts of an unknown form")),
    }
}

/// Form of [`sampling_to_bytes`]; a later form gets the next number.
const SAMPLING_FORM: u8 = 1;

/// Sampling parameters, bit for bit: JSON would lose numbers that are not finite.
pub fn sampling_to_bytes(sampling: &Sampling) -> Vec<u8> {
    let mut out = vec![SAMPLING_FORM, sampling.top_logprobs];
    for float in [
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        sampling.repetition_penalty,
    ] {
        out.extend(float.to_le_bytes());
    }
    out.extend(sampling.seed.to_le_bytes());
    out.extend(sampling.top_k.to_le_bytes());
    out.extend(sampling.min_tokens.to_le_bytes());
    for (token, bias) in &sampling.logit_bias {
        out.extend(token.to_le_bytes());
        out.extend(bias.to_le_bytes());
    }
    out
}

/// The inverse of [`sampling_to_bytes`].
pub fn sampling_from_bytes(bytes: &[u8]) -> Result<Sampling, Malformed> {
    let mut reader = Reader(bytes);
    if reader.take::<1>()? != [SAMPLING_FORM] {
        return Err(Malformed("sampling parameters in an unknown form"));
    }
    let [top_logprobs] = reader.take()?;
    let mut sampling = Sampling {
        top_logprobs,
        top_behavior: false,
        temperature: f32::from_le_bytes(reader.take()?),
        top_p: f32::from_le_bytes(reader.take()?),
        min_p: f32::from_le_bytes(reader.take()?),
        frequency_penalty: f32::from_le_bytes(reader.take()?),
        presence_penalty: f32::from_le_bytes(reader.take()?),
        repetition_penalty: f32::from_le_bytes(reader.take()?),
        seed: u64::from_le_bytes(reader.take()?),
        top_k: u32::from_le_bytes(reader.take()?),
        min_tokens: u32::from_le_bytes(reader.take()?),
        logit_bias: Vec::with_capacity(reader.0.len() / 8),
    };
    while !reader.0.is_empty() {
        let token = Token::from_le_bytes(reader.take()?);
        sampling
            .logit_bias
            .push((token, f32::from_le_bytes(reader.take()?)));
    }
    Ok(sampling)
}

/// Reads a byte slice from the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(Malformed("a record that ends too early"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number that does not end"))
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed("a record with bytes left over"))
        }
    }
}

/// Seven bits a byte, low ones first, the high bit where more follow (LEB128).
fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everything_comes_back(
            tokens: Vec<u32>,
            bits: Vec<u32>,
            kept: Vec<Option<Vec<u32>>>,
            bias: Vec<(u32, u32)>,
            seed: u64,
        ) {
            prop_assert_eq!(tokens_from_bytes(&tokens_to_bytes(&tokens)).unwrap(), tokens);
            let floats: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
            let back = floats_from_bytes(&floats_to_bytes(&floats)).unwrap();
            prop_assert_eq!(back.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits);
            let mut kept: Vec<Option<SamplingMask>> =
                kept.into_iter().map(|set| set.map(SamplingMask::from)).collect();
            kept.extend_from_within(..kept.len() / 2);
            let bytes = kept_to_bytes(&kept);
            prop_assert_eq!(kept_from_bytes(bytes.as_deref(), kept.len()).unwrap(), kept);
            let sampling = Sampling {
                seed,
                temperature: f32::INFINITY,
                logit_bias: bias.iter().map(|(t, b)| (*t, f32::from_bits(*b))).collect(),
                ..Sampling::default()
            };
            let back = sampling_from_bytes(&sampling_to_bytes(&sampling)).unwrap();
            prop_assert_eq!(sampling_to_bytes(&back), sampling_to_bytes(&sampling));
            prop_assert_eq!((back.seed, back.temperature), (seed, f32::INFINITY));
        }

        #[test]
        fn broken_bytes_are_an_error_and_never_a_panic(bytes: Vec<u8>, n in 0usize..50) {
            let _ = kept_from_bytes(Some(&bytes), n);
            let _ = sampling_from_bytes(&bytes);
            let _ = spans_from_bytes(&bytes);
            prop_assert_eq!(tokens_from_bytes(&bytes).is_err(), bytes.len() % 4 != 0);
        }
    }

    #[test]
    fn experts_take_a_byte_each_where_they_fit() {
        for (ids, bytes) in [
            (vec![], None),
            (vec![0, 255, 7], Some(4)),
            (vec![256, 3], Some(5)),
        ] {
            let written = experts_to_bytes(&ids);
            assert_eq!(written.as_ref().map(Vec::len), bytes);
            assert_eq!(experts_from_bytes(written.as_deref()).unwrap(), ids);
        }
        for broken in [&[][..], &[3, 1], &[TWO_BYTES, 1]] {
            assert!(experts_from_bytes(Some(broken)).is_err());
        }
    }

    #[test]
    fn kept_sets_are_compact() {
        let kept = vec![Some((1000..1050).collect::<SamplingMask>()), None];
        let bytes = kept_to_bytes(&kept).unwrap();
        assert!(bytes.len() <= 8, "{} bytes", bytes.len());
        // A vocabulary without its end tokens, as a minimum length leaves it.
        let all: SamplingMask = (0..151_936)
            .filter(|id| ![151_643, 151_645].contains(id))
            .collect();
        let scattered: SamplingMask = (0..100).map(|i| i * 7).collect();
        let kept = vec![
            Some(all),
            Some(scattered),
            Some(SamplingMask::from([])),
            Some(SamplingMask::from([9, 8, 7])),
        ];
        let bytes = kept_to_bytes(&kept).unwrap();
        assert!(bytes.len() <= 130, "{} bytes", bytes.len());
        assert_eq!(kept_from_bytes(Some(&bytes), 4).unwrap(), kept);
        // As it was written before there were runs.
        assert_eq!(
            kept_from_bytes(Some(&[4, 2, 2, 2]), 1).unwrap(),
            [Some(SamplingMask::from([1, 2, 3]))]
        );
        assert_eq!(kept_to_bytes(&[None, None]), None);
    }

    /// A set that a text has at many positions is written once, and in memory once when it is read.
    #[test]
    fn kept_sets_that_are_the_same_stay_so() {
        let wide: SamplingMask = (0..100_000).step_by(3).collect();
        let few = SamplingMask::from([4, 5]);
        let sets = [&few, &wide, &wide, &few, &wide];
        let kept: Vec<_> = sets.into_iter().cloned().map(Some).collect();
        let bytes = kept_to_bytes(&kept).unwrap();
        let once = kept_to_bytes(&kept[..2]).unwrap();
        assert!(bytes.len() <= once.len() + 3 * 4, "{} bytes", bytes.len());
        let back = kept_from_bytes(Some(&bytes), kept.len()).unwrap();
        assert_eq!(back, kept);
        let at = |i: usize| back[i].as_ref().map(SamplingMask::as_ptr);
        assert_eq!((at(1), at(1), at(0)), (at(2), at(4), at(3)));
        // There are two sets, so none is the third.
        let mut broken = once;
        push_varint(&mut broken, SAME + 2);
        assert!(kept_from_bytes(Some(&broken), 3).is_err());
    }
}
