// ESLint for the site's scripts (`make lint-site`): its recommended rules but for those that tsc already holds, and a few more.
// They are written out, so that nothing has to be installed beside this file.
const rules = [
  "array-callback-return", "consistent-return", "eqeqeq", "for-direction", "no-async-promise-executor", "no-case-declarations",
  "no-compare-neg-zero", "no-cond-assign", "no-constant-binary-expression", "no-constant-condition", "no-control-regex",
  "no-debugger", "no-dupe-else-if", "no-duplicate-case", "no-empty", "no-empty-character-class", "no-empty-pattern", "no-eval",
  "no-ex-assign", "no-extend-native", "no-fallthrough", "no-implicit-globals", "no-implied-eval", "no-inner-declarations",
  "no-invalid-regexp", "no-irregular-whitespace", "no-loss-of-precision", "no-misleading-character-class",
  "no-new-func", "no-param-reassign", "no-promise-executor-return", "no-prototype-builtins", "no-regex-spaces", "no-return-assign",
  "no-self-assign", "no-self-compare", "no-sequences", "no-shadow", "no-shadow-restricted-names", "no-sparse-arrays",
  "no-template-curly-in-string", "no-throw-literal", "no-unmodified-loop-condition", "no-unreachable-loop", "no-unsafe-finally",
  "no-unsafe-negation", "no-unsafe-optional-chaining", "no-unused-expressions", "no-unused-labels", "no-unused-vars",
  "no-useless-assignment", "no-useless-catch", "no-useless-concat", "no-useless-escape",
  "no-useless-return", "no-var", "object-shorthand", "prefer-const", "prefer-template", "require-yield",
  "use-isnan", "valid-typeof", "yoda",
];

export default [
  { files: ["**/view/*.js", "**/tab/*.js"], languageOptions: { ecmaVersion: 2022, sourceType: "module" } },
  {
    files: ["**/static/*.js"],
    languageOptions: { ecmaVersion: 2022, sourceType: "script" },
    rules: { strict: ["error", "global"] },
  },
  {
    files: ["**/*.js"],
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...Object.fromEntries(rules.map((rule) => [rule, "error"])),
      "no-use-before-define": ["error", { functions: false }],
    },
  },
];
