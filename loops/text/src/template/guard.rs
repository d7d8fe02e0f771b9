//! Limits on what a template can cost.
//!
//! The template engine counts instructions and nesting of calls. That does not bound memory and
//! time, because one instruction can double a string or compare two huge lists. So the compiled
//! template is rewritten: before every operation whose cost depends on its operands, and after
//! every one that makes a value, a check is put in. The checks charge one budget per rendering and
//! refuse values that are too long, too deep or contain themselves.

use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions, TemplateConfig};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, State, Value};

use super::cost::{charge, deep, over, shallow};
use super::values::is_namespace;
use super::{cost, lookup, operators, source};

/// Compiles a source that [`source::prepared`] gave, and puts the checks in.
pub(super) fn compile(program: &str) -> Result<CompiledTemplate<'_>, Error> {
    let config = TemplateConfig {
        syntax_config: source::syntax()?,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut compiled = CompiledTemplate::new("chat_template", program, &config)?;
    compiled.instructions = checked(&compiled.instructions)?;
    for block in compiled.blocks.values_mut() {
        *block = checked(block)?;
    }
    Ok(compiled)
}

/// Filters, methods and functions whose cost is that of everything inside their arguments.
const DEEP_NAMES: [&str; 15] = [
    "dict",
    "format",
    "sort",
    "unique",
    "groupby",
    "min",
    "max",
    "dictsort",
    "changed",
    "index",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
];

/// Names no template can write, so these filters cannot be called or replaced from inside.
mod check {
    pub(super) const SHALLOW: &str = "~shallow";
    pub(super) const FLAT: &str = "~flat";
    pub(super) const DEEP: &str = "~deep";
    pub(super) const PRODUCT: &str = "~product";
    pub(super) const SUM: &str = "~sum";
    pub(super) const REPLACE: &str = "~replace";
    pub(super) const JOIN: &str = "~join";
    pub(super) const PIECES: &str = "~pieces";
    pub(super) const STORE: &str = "~store";
    pub(super) const MADE: &str = "~made";
    pub(super) const NO_FUNCTION: &str = "~nofunction";
}

/// What goes before an instruction (a check on its operands, and their number) and whether its
/// result is checked.
type Plan = (Option<(&'static str, u16)>, bool);

fn plan(instruction: &Instruction<'_>) -> Result<Plan, Error> {
    let arguments = |name: &str, count: Option<u16>| match count {
        None => Err(over(
            "it calls with * or ** arguments, which cannot be limited",
        )),
        Some(0) => Ok(None),
        Some(n) => {
            let filter = match name {
                "replace" => check::REPLACE,
                "join" => check::JOIN,
                "split" | "rsplit" | "splitlines" | "list" | "reverse" | "string" | "first"
                | "last" => check::PIECES,
                name if DEEP_NAMES.contains(&name) => check::DEEP,
                _ => check::SHALLOW,
            };
            Ok(Some((filter, n)))
        }
    };
    // Macros take their arguments as they are, and functions charge what they make of them.
    let flat = |name: &str, count: Option<u16>| {
        let planned = arguments(name, count)?;
        Ok::<_, Error>(planned.map(|(filter, n)| match filter {
            check::DEEP => (filter, n),
            _ => (check::FLAT, n),
        }))
    };
    Ok(match instruction {
        Instruction::Mul => (Some((check::PRODUCT, 2)), true),
        Instruction::Add => (Some((check::SUM, 2)), true),
        Instruction::StringConcat => (Some((check::DEEP, 2)), true),
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::In
        | Instruction::CompareAndPreserve(_) => (Some((check::DEEP, 2)), false),
        Instruction::PerformTest(_, Some(n), _) if *n > 1 => (Some((check::DEEP, *n)), false),
        Instruction::PerformTest(_, count, _) => (flat("", *count)?, false),
        Instruction::ApplyFilter(source::KEPT, Some(1), _) => (None, false),
        Instruction::ApplyFilter("length" | "count", Some(1), _) => (flat("", Some(1))?, false),
        // The engine divides by the number of arguments.
        Instruction::CallMethod("cycle", Some(1)) => return Err(over("it cycles through nothing")),
        Instruction::CallMethod("count", Some(n)) => (Some((check::DEEP, *n)), true),
        Instruction::ApplyFilter(name, count, _) | Instruction::CallMethod(name, count) => {
            (arguments(name, *count)?, true)
        }
        Instruction::CallFunction(name, count) => (flat(name, *count)?, true),
        Instruction::CallObject(count) => (flat("", *count)?, true),
        Instruction::BuildList(_) | Instruction::BuildTuple(_) | Instruction::BuildMap(_) => {
            (None, true)
        }
        Instruction::Rem => (Some((check::DEEP, 2)), true),
        Instruction::Slice | Instruction::EndCapture => (None, true),
        Instruction::SetAttr(_) => (Some((check::STORE, 2)), false),
        _ => (None, false),
    })
}

/// An instruction as it runs here: Python's operators take the place of the engine's, and whatever
/// it writes goes through [`cost::print`].
fn replaced<'s>(
    instruction: Instruction<'s>,
    next: Option<&Instruction<'_>>,
) -> Vec<Instruction<'s>> {
    let call = |name, count| Instruction::ApplyFilter(name, Some(count), !0);
    if let Some((name, count)) = operators::instead_of(&instruction) {
        return vec![call(name, count)];
    }
    match instruction {
        Instruction::EmitRaw(raw) => {
            vec![Instruction::LoadConst(Value::from(raw)), Instruction::Emit]
        }
        Instruction::GetAttr(name) if lookup::is_known(name) => {
            vec![
                Instruction::LoadConst(Value::from(name)),
                call("~opattr", 2),
            ]
        }
        Instruction::ApplyFilter(source::KEPT, Some(1), _) => Vec::new(),
        // Under another name it would be called without its check. A test only looks at it.
        Instruction::Lookup("dict")
            if !matches!(next, Some(Instruction::PerformTest(_, Some(1), _))) =>
        {
            vec![Instruction::Lookup("dict"), call(check::NO_FUNCTION, 1)]
        }
        Instruction::PushLoop(flags) => vec![call("~opiter", 1), Instruction::PushLoop(flags)],
        Instruction::UnpackList(n) => vec![call("~opunpack", 1), Instruction::UnpackList(n)],
        // The right side stays for the next comparison of the chain.
        Instruction::CompareAndPreserve(op) => {
            vec![
                call(operators::kept_by(op as u8), 2),
                Instruction::UnpackList(2),
            ]
        }
        other => vec![other],
    }
}

/// The same program with checks and with operators replaced. Jump targets move along.
fn checked<'s>(code: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut moved = Vec::new();
    let mut length = 0u32;
    let mut at = 0;
    while let Some(instruction) = code.get(at) {
        moved.push(length);
        let (before, after) = plan(instruction)?;
        let inside = replaced(instruction.clone(), code.get(at + 1)).len() as u32;
        length += inside + 2 * u32::from(before.is_some()) + u32::from(after);
        at += 1;
    }
    moved.push(length);
    let mut out = Instructions::new(code.name(), code.source());
    for index in 0..at {
        let instruction = code.get(index).expect("counted above").clone();
        let line = code.get_line(index).unwrap_or(0) as u16;
        let mut add = |instruction| out.add_with_line(instruction, line);
        let (before, after) = plan(&instruction)?;
        if let Some((filter, count)) = before {
            // The check gives its arguments back as a list, which puts them on the stack again.
            add(Instruction::ApplyFilter(filter, Some(count), !0));
            add(Instruction::UnpackList(usize::from(count)));
        }
        for instruction in replaced(instruction, code.get(index + 1)) {
            add(retargeted(instruction, &moved));
        }
        if after {
            add(Instruction::ApplyFilter(check::MADE, Some(1), !0));
        }
    }
    Ok(out)
}

fn retargeted<'s>(instruction: Instruction<'s>, moved: &[u32]) -> Instruction<'s> {
    let target = |to: u32| moved[to as usize];
    match instruction {
        Instruction::Iterate(to) => Instruction::Iterate(target(to)),
        Instruction::Jump(to) => Instruction::Jump(target(to)),
        Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(target(to)),
        Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(target(to)),
        Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(target(to)),
        Instruction::BuildMacro(name, to, flags) => {
            Instruction::BuildMacro(name, target(to), flags)
        }
        other => other,
    }
}

/// Registers the checks and the limited way to print.
pub(super) fn install(env: &mut Environment<'static>) {
    fn add(
        env: &mut Environment<'static>,
        name: &'static str,
        f: fn(&[Value]) -> Result<(), Error>,
    ) {
        env.add_filter(
            name,
            move |args: Rest<Value>, named: Kwargs| -> Result<Value, Error> {
                let mut all = args.0;
                if named.args().next().is_some() {
                    all.push(Value::from(named)); // always the last argument on the stack
                }
                f(&all)?;
                // Unpacking puts the first item on top; the last argument belongs there.
                all.reverse();
                Ok(Value::from(all))
            },
        );
    }
    add(env, check::SHALLOW, |args| {
        args.iter().try_for_each(shallow)
    });
    add(env, check::FLAT, |args| {
        args.iter().try_for_each(cost::flat)
    });
    add(env, check::DEEP, |args| {
        args.iter().try_for_each(|v| deep(v, 0))
    });
    add(env, check::PRODUCT, |args| match args {
        [a, b] => cost::product(a, b),
        _ => Ok(()),
    });
    add(env, check::SUM, cost::sum);
    add(env, check::REPLACE, cost::replace);
    add(env, check::JOIN, cost::join);
    add(env, check::PIECES, |args| {
        let pieces = args.first().and_then(Value::as_str).map_or(0, str::len);
        charge(pieces.saturating_mul(cost::PIECE_BYTES))?;
        args.iter().try_for_each(shallow)
    });
    add(env, check::STORE, |args| match args {
        [value, _] if value.kind() == ValueKind::Plain || is_namespace(value) => {
            Err(over("it stores a namespace or macro inside a namespace"))
        }
        [value, _] => deep(value, 1),
        _ => Ok(()),
    });
    env.add_filter(check::MADE, |value: Value| -> Result<Value, Error> {
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => deep(&value, 0)?,
            _ => shallow(&value)?,
        }
        Ok(value)
    });
    env.add_filter(check::NO_FUNCTION, |value: Value| match value.kind() {
        ValueKind::Plain => Err(over("it takes the function dict as a value")),
        _ => Ok(value),
    });
    env.set_formatter(move |out, _: &mut State<'_, '_>, value| cost::print(out, value));
}
