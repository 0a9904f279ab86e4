"""English verbs: base forms, and forms that no rule makes of them."""

from __future__ import annotations

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import listed

VERBS = frozenset(
    listed(
        "accept achieve act adapt add address adjust admit adopt advise agree aim allow analyze announce answer "
        "apply approach argue arrange arrive ask assemble assess assign assume attach attempt attend avoid bake "
        "balance base beat begin believe belong blend boil book borrow break breathe bring browse build burn buy "
        "calculate call care carry catch cause celebrate challenge change charge chat check choose chop clean "
        "clear click climb close collect combine come compare complete compose compute conduct confirm connect "
        "consider consist contact contain continue contribute convert cook cool copy count cover create cross cut "
        "dance deal decide define delete deliver depend describe design destroy determine develop die dig discover "
        "discuss display divide do draft draw dream dress drink drive drop earn eat edit embrace employ empty "
        "enable encourage end enjoy ensure enter establish estimate evaluate examine exercise exist expand expect "
        "experience explain explore express extend face fail fall feel fetch fight figure fill find finish fit fix "
        "fly focus fold follow forget forgive form gain gather generate get give go grab grow guard guess guide "
        "handle hang happen hate have head hear heat help hide highlight hit hold hope hunt identify ignore "
        "imagine implement improve include increase indicate inform insert inspire install introduce invest "
        "investigate invite involve join judge jump keep kick kill kiss knock know laugh launch lay lead lean "
        "learn leave lend let lie lift light like limit link list listen live load locate look lose love lower "
        "maintain make manage mark marry master match mean measure meet mention mix modify monitor move multiply "
        "name need note notice obey observe obtain occur offer open order organize overcome own pack paint "
        "participate pass pause pay perform permit pick place plan plant play pour practice prefer prepare present "
        "press prevent print proceed process produce promise promote propose protect prove provide pull pursue "
        "push put quit raise reach read realize receive recognize recommend record reduce refer reflect refuse "
        "reject relax release rely remain remember remind remove repair repeat replace reply report represent "
        "request require research resolve respect respond rest restore retain return reveal review ride rinse rise "
        "roll run save say scan schedule search see seek seem select sell send separate serve set settle shake "
        "shape share shift shine show shut sing sit sleep slice smile solve sort speak specify spend split spread "
        "stand start state stay steal step stick stir stop store strengthen strike struggle study submit subtract "
        "succeed suffer suggest summarize supply support suppose surround survive swim switch take talk taste "
        "teach tell tend test thank think throw touch track train transfer transform translate travel treat trust "
        "try turn type understand unite unlock update upgrade use utilize validate verify view visit wait wake "
        "walk want warm warn wash waste watch wear weigh welcome win wish wonder work worry wrap write"
    )
)
IRREGULAR = frozenset(
    listed(
        "am are be been began begun being bought broke broken brought built came caught chose chosen did does don "
        "done drank drew drove eaten ate felt fell flew forgot fought found gave given gone got grew grown had has "
        "heard held hid is kept knew known laid led left lent lost made meant met paid ran rose said sang sat saw "
        "seen sent shone shook shown slept sold sought spent spoke spoken stood stole struck swam taken taught "
        "thought threw told took understood was went were woke won wore wrote written"
    )
)
