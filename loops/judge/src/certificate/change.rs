//! A change of code: the unified diff of a completion, applied to the files it is about.

use diffy::patch_set::{FileOperation, ParseOptions, PatchSet};
use hone_domain::SourceFile;

use super::types::Unusable;

/// Most comparisons of lines for what differs between both sides of a change. The differ has no limit
/// of its own, and takes the product of lines and edits.
const COMPARISONS_MAX: usize = 20_000_000;

/// The files on both sides of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Before.
    pub before: Vec<SourceFile>,
    /// After.
    pub after: Vec<SourceFile>,
    /// What differs.
    pub hunks: Vec<Hunk>,
}

/// Lines that differ, from 1; an empty range has `to` below `from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// The file.
    pub file: String,
    /// Lines before.
    pub before: (usize, usize),
    /// Lines after.
    pub after: (usize, usize),
}

impl Changed {
    /// Finds what differs between two states of the files.
    pub fn between(before: Vec<SourceFile>, after: Vec<SourceFile>) -> Self {
        let mut hunks = Vec::new();
        let text_in = |files: &[SourceFile], path: &str| {
            let file = files.iter().find(|file| file.path == path);
            file.map(|file| file.text.clone()).unwrap_or_default()
        };
        let gone = before
            .iter()
            .filter(|b| !after.iter().any(|a| a.path == b.path));
        for path in after.iter().chain(gone).map(|file| &file.path) {
            let (old, new) = (text_in(&before, path), text_in(&after, path));
            let mut options = diffy::DiffOptions::new();
            let patch = options.set_context_len(0).create_patch(&old, &new);
            hunks.extend(patch.hunks().iter().map(|hunk| Hunk {
                file: path.clone(),
                before: lines(hunk.old_range()),
                after: lines(hunk.new_range()),
            }));
        }
        Self {
            before,
            after,
            hunks,
        }
    }
}

/// First and last line of a range; an empty one lies behind the line that it names.
fn lines(range: diffy::HunkRange) -> (usize, usize) {
    match range.is_empty() {
        true => (range.start() + 1, range.start()),
        false => (range.start(), range.start() + range.len() - 1),
    }
}

/// Reads and applies the change that a completion proposes.
pub(super) fn read(completion: &str, files: &[SourceFile]) -> Result<Changed, Unusable> {
    let diff = diff_in(completion);
    let diff =
        diff.ok_or_else(|| Unusable::NoChange("the answer holds no unified diff".to_owned()))?;
    let mut after = files.to_vec();
    for patch in PatchSet::parse(&diff, ParseOptions::unidiff()) {
        let patch = patch
            .map_err(|error| Unusable::NoChange(format!("its diff cannot be read: {error}")))?;
        let operation = named(patch.operation(), files);
        let text = patch.patch().as_text();
        let text = text.ok_or_else(|| Unusable::NoChange("its diff is binary".to_owned()))?;
        apply(&mut after, &operation, text).map_err(Unusable::DoesNotApply)?;
    }
    if !is_comparable(files, &after) {
        let why = "too much differs between the files before and after to be followed";
        return Err(Unusable::TooLarge(why.to_owned()));
    }
    let changed = Changed::between(files.to_vec(), after);
    if changed.hunks.is_empty() {
        return Err(Unusable::NoChange("the diff changes nothing".to_owned()));
    }
    Ok(changed)
}

/// Whether what differs between the files of one path is found with few enough comparisons.
fn is_comparable(before: &[SourceFile], after: &[SourceFile]) -> bool {
    let mut left = COMPARISONS_MAX;
    before.iter().all(|old| {
        let new = after.iter().find(|new| new.path == old.path);
        let taken = new.map_or(Some(0), |new| comparisons(&old.text, &new.text, left));
        left -= taken.unwrap_or_default();
        taken.is_some()
    })
}

/// Comparisons that the shortest edits between two texts take, from their beginning (Myers 1986,
/// figure 2); none where they are more than `most`.
fn comparisons(old: &str, new: &str, most: usize) -> Option<usize> {
    let lines = |text| str::split_inclusive(text, '\n').collect::<Vec<&str>>();
    let (old, new) = (lines(old), lines(new));
    let edits_max = old.len() + new.len();
    // The furthest line of the old text by how many more lines it has passed than of the new one.
    let mut furthest = vec![0; 2 * edits_max + 3];
    let mut taken = 0;
    for edits in 0..=edits_max {
        for ahead in (edits_max + 1 - edits..=edits_max + 1 + edits).step_by(2) {
            let is_lowest = ahead == edits_max + 1 - edits;
            let is_highest = ahead == edits_max + 1 + edits;
            let is_new = is_lowest || (!is_highest && furthest[ahead - 1] < furthest[ahead + 1]);
            let mut at = match (edits, is_new) {
                (0, _) => 0,
                (_, true) => furthest[ahead + 1],
                (_, false) => furthest[ahead - 1] + 1,
            };
            let other = |at: usize| (at + edits_max + 1).checked_sub(ahead);
            let is_same = |at: usize| {
                let new = other(at).and_then(|at| new.get(at));
                new.is_some() && old.get(at) == new
            };
            let start = at;
            while is_same(at) {
                at += 1;
            }
            furthest[ahead] = at;
            taken += 1 + at - start;
            if taken > most {
                return None;
            }
            if at >= old.len() && other(at) >= Some(new.len()) {
                return Some(taken);
            }
        }
    }
    Some(taken)
}

/// The diffs of a text: what its fences hold, or all of it where it has none.
fn diff_in(text: &str) -> Option<String> {
    let is_diff = |part: &str| {
        let mut lines = part.lines();
        lines.any(|l| l.starts_with("--- ")) && part.lines().any(|l| l.starts_with("@@ "))
    };
    let fenced: Vec<String> = text
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|part| part.split_once('\n').map(|(_, body)| body.to_owned()))
        .filter(|body| is_diff(body))
        .collect();
    let diff = if fenced.is_empty() {
        text.to_owned()
    } else {
        fenced.concat()
    };
    is_diff(&diff).then_some(diff)
}

/// Paths without `a/` and `b/`, where the files are known without them.
fn named<'a>(operation: &FileOperation<'a, str>, files: &[SourceFile]) -> FileOperation<'a, str> {
    let known = |path: &str| files.iter().any(|file| file.path == path);
    let is_known = match operation {
        FileOperation::Delete(path) => known(path),
        FileOperation::Create(path) => !path.starts_with("b/"),
        FileOperation::Modify { original, .. } => known(original),
        FileOperation::Rename { from, .. } | FileOperation::Copy { from, .. } => known(from),
    };
    if is_known {
        return operation.clone();
    }
    let strip = |path: &str| {
        let bare = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/"));
        std::borrow::Cow::Owned(bare.unwrap_or(path).to_owned())
    };
    match operation {
        FileOperation::Delete(path) => FileOperation::Delete(strip(path)),
        FileOperation::Create(path) => FileOperation::Create(strip(path)),
        FileOperation::Modify { original, modified } => FileOperation::Modify {
            original: strip(original),
            modified: strip(modified),
        },
        FileOperation::Rename { from, to } => FileOperation::Rename {
            from: strip(from),
            to: strip(to),
        },
        FileOperation::Copy { from, to } => FileOperation::Copy {
            from: strip(from),
            to: strip(to),
        },
    }
}

fn apply(
    files: &mut Vec<SourceFile>,
    operation: &FileOperation<'_, str>,
    patch: &diffy::Patch<'_, str>,
) -> Result<(), String> {
    let (from, to) = match operation {
        FileOperation::Delete(path) => (Some(path), None),
        FileOperation::Create(path) => (None, Some(path)),
        FileOperation::Modify { original, modified } => (Some(original), Some(modified)),
        FileOperation::Rename { from, to } | FileOperation::Copy { from, to } => {
            (Some(from), Some(to))
        }
    };
    let at = match from {
        None => None,
        Some(path) => {
            let at = files.iter().position(|file| file.path == path.as_ref());
            Some(at.ok_or_else(|| format!("{path:?} is not among the files"))?)
        }
    };
    let old = at.map_or("", |at| files[at].text.as_str());
    let text =
        diffy::apply(old, patch).map_err(|error| format!("the diff does not fit: {error}"))?;
    if let Some(at) = at.filter(|_| !matches!(operation, FileOperation::Copy { .. })) {
        files.remove(at);
    }
    let Some(path) = to else { return Ok(()) };
    if files.iter().any(|file| file.path == path.as_ref()) {
        return Err(format!("{path:?} is there already"));
    }
    let file = SourceFile {
        path: path.to_string(),
        text,
    };
    files.insert(at.unwrap_or(files.len()).min(files.len()), file);
    Ok(())
}
