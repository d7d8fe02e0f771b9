use hone_nn::folder::ModelFolder;
use hone_starter::{chat::*, grammar::*, rng::Rng};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let t = Talker::open(&ModelFolder::open(std::path::Path::new(&a[1])).unwrap(), 2).unwrap();
    let g = Grammar::new();
    let mut rng = Rng::new(5);
    let mut stats: std::collections::BTreeMap<String, [u32; 4]> = Default::default();
    let mut shown = 0;
    for q in g.held_out_questions(9, 400) {
        let r = t.chat(None, None, 256).say(&q.text, 1.0, &mut rng).unwrap();
        let v = g.check_fact(q.fact, &r.text);
        let key = g.fact(q.fact).key.split('/').take(2).collect::<Vec<_>>().join("/");
        let s = stats.entry(format!("ask {key}")).or_default();
        s[0] += 1; s[1] += u32::from(v.exact);
        if !v.exact && shown < 15 { shown += 1; println!("ASK {} -> {:?}", q.text, r.text); }
    }
    shown = 0;
    for d in g.dialogues(4242).take(500) {
        let mut c = t.chat(None, None, 1024);
        for (i, turn) in d.turns.iter().enumerate() {
            let r = c.say(&turn.user, 1.0, &mut rng).unwrap();
            let v = g.check_fact(turn.fact, &r.text);
            let s = stats.entry(format!("{:?} {:?}", turn.kind, turn.wish)).or_default();
            let met = turn.wish.is_none_or(|w| v.style.is_some_and(|s| s.meets(w)));
            s[0] += 1; s[1] += u32::from(v.exact); s[2] += u32::from(met); s[3] += u32::from(met && v.exact);
            if turn.kind == TurnKind::Wish && !(v.exact && met) && shown < 20 { shown += 1; println!("PREV {:?}\n  {} -> {:?}", d.turns[i - 1].assistant, turn.user, r.text); }
            c.correct("assistant", &turn.assistant);
        }
    }
    for (k, s) in stats { println!("{k:50} n {:4} exact {:.2} met {:.2} both {:.2}", s[0], f64::from(s[1]) / f64::from(s[0]), f64::from(s[2]) / f64::from(s[0]), f64::from(s[3]) / f64::from(s[0])); }
    for q in ["Hi", "Who are you?", "What's the capital of France", "tell me about golf", "what is love?", "how do I bake a cake?", "what is 12 plus 9?"] {
        let r = t.chat(None, None, 256).say(q, 1.0, &mut rng).unwrap();
        println!("{q} -> {:?}", r.text);
    }
}
